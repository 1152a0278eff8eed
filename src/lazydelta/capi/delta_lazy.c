/* The C half of libdelta_lazy. cffi makes the other half, behind which Python answers.
 *
 * The functions that cffi makes return 0 when Python cannot be started, so 0 never means success between the halves:
 * a host whose Python is broken gets an error code, and not a table without files.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "delta_lazy.h"

#define DONE 1 /* between the halves; errors are the negative codes of the header */
#define LONGEST 4096
#define LEAST_STACK (512 * 1024) /* what Python needs of a thread's stack */
#define LONGEST_WAIT 10000       /* milliseconds that an exit waits for calls that are under way */

/* As Arrow's specification of the C stream interface has it. */
struct ArrowSchema;
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

CFFI_DLLEXPORT int lazydelta_objects(const char *, const char *, bool (*)(const char *, void *), void *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_stream(const char *, const char *, uintptr_t, uintptr_t, char *, size_t);
CFFI_DLLEXPORT int lazydelta_simple(const char *, const char *, size_t, uintptr_t, uintptr_t, char *, size_t);
CFFI_DLLEXPORT int lazydelta_vector(const char *, const char *, const char *, const char *, const char *, int64_t, int64_t,
                                    int64_t, bool (*)(const uint64_t *, size_t, void *), void *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_cancel(const char *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_open(const char *, const char *, char *, size_t, char *, size_t);
CFFI_DLLEXPORT int lazydelta_close(const char *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_refresh(const char *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_metrics(const char *, char *, size_t, char *, size_t);
CFFI_DLLEXPORT int lazydelta_start(char *, size_t);
CFFI_DLLEXPORT int lazydelta_stop(char *, size_t);

extern void *__dso_handle __attribute__((visibility("hidden")));
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *) __attribute__((weak));

/* Calls of all threads that are under way; whether no more are taken; whether the process is at its exit. */
static atomic_int inside, ended, exiting;

static void shut_down_at_exit(void);
static _Thread_local int depth;  /* those of this thread: a callback may call again, or leave the process */
static pid_t started_in = 0;
static _Thread_local char last_error[LONGEST];
static const char *python_missing = NULL;
static wchar_t program_name[PATH_MAX];
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* A host that loads this library with RTLD_LOCAL (Java, .NET, dlopen by default) hides libpython's symbols from
 * Python's own extension modules. It is there already, as our dependency; it is made global here. */
static void shut_down_first(void *nothing) {
    (void)nothing;
    shut_down_at_exit();
}

__attribute__((constructor)) static void promote_python(void) {
    /* An exit destroys what Arrow and others keep in static variables, which they make when they are first used: some of
     * it after, and so at exit before, whatever is registered with atexit here. What belongs to the thread that exits
     * is destroyed before all of it, and that is nearly always the first thread. */
    if (__cxa_thread_atexit_impl != NULL && getpid() == gettid())
        __cxa_thread_atexit_impl(shut_down_first, NULL, &__dso_handle);
    if (dlopen(DELTA_LAZY_LIBPYTHON, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) == NULL)
        python_missing = "libdelta_lazy: " DELTA_LAZY_LIBPYTHON " cannot be made visible to Python's modules";
}

static bool has_python(const char *folder, char *found) {
    struct stat about;
    char config[PATH_MAX + 16];
    snprintf(config, sizeof config, "%s/pyvenv.cfg", folder);
    if (stat(config, &about) != 0) {
        snprintf(config, sizeof config, "%s/delta_lazy.bundle", folder); /* capi/bundle.py */
        if (stat(config, &about) != 0) return false;
    }
    if ((size_t)snprintf(found, PATH_MAX, "%s/bin/python", folder) >= PATH_MAX) return false;
    return stat(found, &about) == 0;
}

/* The environment that lazydelta is in: the one that the variable names, else the one around this file, else the one
 * that built it. Python finds its packages by the name of its program. */
static void find_environment(void) {
    char folder[PATH_MAX], found[PATH_MAX];
    Dl_info here;
    const char *given = getenv("DELTA_LAZY_VENV");
    if (python_missing != NULL || Py_IsInitialized()) return;
    if (given != NULL && *given != '\0') {
        if (!has_python(given, found)) {
            python_missing = "DELTA_LAZY_VENV names no virtual environment";
            return;
        }
    } else {
        bool is_found = false;
        if (dladdr((void *)find_environment, &here) != 0 && realpath(here.dli_fname, folder) != NULL) {
            char *slash;
            while (!is_found && (slash = strrchr(folder, '/')) != NULL && slash != folder) {
                *slash = '\0';
                is_found = has_python(folder, found);
            }
        }
        if (!is_found && !has_python(DELTA_LAZY_PREFIX, found)) snprintf(found, sizeof found, "%s", DELTA_LAZY_PYTHON);
        if (found[0] == '\0') {
            python_missing = "this library belongs to a bundle, and the rest of the bundle is not around it";
            return;
        }
    }
    if (mbstowcs(program_name, found, PATH_MAX - 1) == (size_t)-1) {
        python_missing = "the path of the virtual environment is not in the encoding of the locale";
        return;
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    Py_SetProgramName(program_name);
#pragma GCC diagnostic pop
}

/* Python's module signal, which some library or other imports, takes SIGINT over where no handler is set: a host would no
 * longer end on Ctrl-C. It is imported here, and what it did is undone. The handler at exit, for threads other than the
 * first, is registered behind those of the libraries that Python has loaded: it runs before them. */
static void start_python(void) {
    struct sigaction before[NSIG];
    bool known[NSIG];
    char words[LONGEST];
    find_environment();
    if (python_missing != NULL) return;
    for (int number = 1; number < NSIG; number++) known[number] = sigaction(number, NULL, &before[number]) == 0;
    lazydelta_start(words, sizeof words); /* if it fails, every call tells why */
    for (int number = 1; number < NSIG; number++)
        if (known[number]) sigaction(number, &before[number], NULL);
    started_in = getpid();
    atexit(shut_down_at_exit);
}

/* Whether this thread has room for Python; unknown on a stack that is not the thread's own. */
static bool has_stack(void) {
    static _Thread_local char *lowest;
    static _Thread_local size_t size;
    char here;
    if (lowest == NULL) {
        pthread_attr_t about;
        void *base = NULL;
        if (pthread_getattr_np(pthread_self(), &about) != 0) return true;
        pthread_attr_getstack(&about, &base, &size);
        pthread_attr_destroy(&about);
        lowest = base;
    }
    if (&here < lowest || &here >= lowest + size) return true;
    return (size_t)(&here - lowest) >= LEAST_STACK;
}

static void leave(void) {
    depth--;
    atomic_fetch_sub(&inside, 1);
}

/* Every call that returns DELTA_OK here is followed by leave(). */
static int enter(char *error, size_t size) {
    error[0] = '\0';
    if (!has_stack()) {
        snprintf(error, size, "the stack of this thread is too small: Python needs %d KB of it", LEAST_STACK / 1024);
        return DELTA_ERROR_ARGUMENT;
    }
    depth++;
    atomic_fetch_add(&inside, 1);
    if (atomic_load(&ended)) {
        leave();
        snprintf(error, size, "libdelta_lazy was shut down");
        return DELTA_ERROR_CANCELLED;
    }
    pthread_once(&prepared, start_python);
    const char *why = python_missing;
    /* A forked child has none of the threads that run scans, and a call would wait for them for ever. */
    if (why == NULL && started_in != getpid())
        why = "this process was forked after the first call of libdelta_lazy: fork before it, or start a program";
    if (why == NULL) return DELTA_OK;
    leave();
    snprintf(error, size, "%s", why);
    return DELTA_ERROR_PYTHON;
}

static int begin(void) { return enter(last_error, sizeof last_error); }

static int end(int code) {
    leave();
    if (code == DONE) return DELTA_OK;
    if (code < 0) return code;
    snprintf(last_error, sizeof last_error, "the Python of libdelta_lazy could not be started; standard error has why");
    return DELTA_ERROR_PYTHON;
}

static int refuse(const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return DELTA_ERROR_ARGUMENT;
}

static void wait_for_calls(void) {
    struct timespec pause = {0, 1000000};
    for (int waited = 0; atomic_load(&inside) > depth && waited < LONGEST_WAIT; waited++) nanosleep(&pause, NULL);
}

CFFI_DLLEXPORT void delta_shutdown(void) {
    char words[LONGEST];
    if (atomic_exchange(&ended, 1) || started_in != getpid()) return; /* a forked child has none of the threads */
    lazydelta_stop(words, sizeof words);
    wait_for_calls();
}

/* From here on nothing of Arrow's is freed either: its memory pools are destroyed beside the threads that still run. */
static void shut_down_at_exit(void) {
    atomic_store(&exiting, 1);
    delta_shutdown();
    if (started_in == getpid()) wait_for_calls();
}

/* Whether to free what a caller gives back, followed by leave(); at the exit of the process it is left as it is. */
static bool may_free(void) {
    depth++;
    atomic_fetch_add(&inside, 1);
    if (!atomic_load(&exiting) && started_in == getpid()) return true;
    leave();
    return false;
}

/* The stream of Python's half, whose calls are counted, and whose errors have codes and no traces of Python. */
struct counted_stream {
    struct ArrowArrayStream inner;
    char error[LONGEST];
};

/* Write what went wrong into error, without traces of Python, and return our code; 0 where Python's half gave none. */
static long told(const char *said, char *error, size_t size) {
    const char *start = said == NULL ? NULL : strchr(said, '\2');
    if (start == NULL) {
        snprintf(error, size, "%s", said == NULL ? "" : said);
        return 0;
    }
    char *text;
    long code = strtol(start + 1, &text, 10);
    snprintf(error, size, "%s", *text == '\2' ? text + 1 : text);
    error[strcspn(error, "\3")] = '\0';
    return code;
}

static int stream_end(struct counted_stream *stream, int code) {
    long ours = 0;
    if (code != 0) ours = told(stream->inner.get_last_error(&stream->inner), stream->error, sizeof stream->error);
    leave();
    if (ours == 0) return code;
    return ours == DELTA_ERROR_CANCELLED ? ECANCELED : ours == DELTA_ERROR_ARGUMENT ? EINVAL : EIO;
}

static int stream_refused(int code) { return code == DELTA_ERROR_CANCELLED ? ECANCELED : EINVAL; }

static int stream_get_schema(struct ArrowArrayStream *self, struct ArrowSchema *out) {
    struct counted_stream *stream = self->private_data;
    int code = enter(stream->error, sizeof stream->error);
    if (code != DELTA_OK) return stream_refused(code);
    return stream_end(stream, stream->inner.get_schema(&stream->inner, out));
}

/* What Arrow has put into an array that is released by a counted call. */
struct counted_array {
    void (*release)(struct ArrowArray *);
    void *private_data;
};

static void array_release(struct ArrowArray *self) {
    struct counted_array *array = self->private_data;
    if (!may_free()) {
        self->release = NULL;
        return;
    }
    self->release = array->release;
    self->private_data = array->private_data;
    free(array);
    self->release(self);
    leave();
}

static int stream_get_next(struct ArrowArrayStream *self, struct ArrowArray *out) {
    struct counted_stream *stream = self->private_data;
    int code = enter(stream->error, sizeof stream->error);
    if (code != DELTA_OK) return stream_refused(code);
    struct counted_array *array = malloc(sizeof *array);
    code = array == NULL ? ENOMEM : stream->inner.get_next(&stream->inner, out);
    if (code == 0 && out->release != NULL) {
        *array = (struct counted_array){out->release, out->private_data};
        out->release = array_release;
        out->private_data = array;
    } else {
        free(array);
    }
    return stream_end(stream, code);
}

static const char *stream_get_last_error(struct ArrowArrayStream *self) {
    struct counted_stream *stream = self->private_data;
    return stream->error[0] == '\0' ? NULL : stream->error;
}

static void stream_release(struct ArrowArrayStream *self) {
    struct counted_stream *stream = self->private_data;
    self->release = NULL;
    if (!may_free()) return;
    stream->inner.release(&stream->inner);
    free(stream);
    leave();
}

CFFI_DLLEXPORT const char *delta_version(void) { return DELTA_LAZY_VERSION; }

CFFI_DLLEXPORT const char *delta_last_error(void) { return last_error; }

/* Files out of Arrow's arrays: no Python runs, and none of its locks is held, while the caller has a file. The columns
 * are those of FILES_SCHEMA in lazydelta.scan.file, in this order. */
enum { PATH, SIZE, MODIFICATION_TIME, PARTITION_VALUES, NUM_RECORDS, DELETION_VECTOR, VERSION, TIER, COLUMNS };
enum { STORAGE_TYPE, PATH_OR_INLINE, OFFSET, SIZE_IN_BYTES, CARDINALITY };

struct file_buffer {
    char *text; /* Arrow's texts do not end with a zero */
    size_t used, room;
    const char **names; /* of partitions, and behind them the values */
    size_t names_room;
};

static bool is_null(const struct ArrowArray *array, int64_t row) {
    const uint8_t *bits = array->buffers[0];
    row += array->offset;
    return bits != NULL && (bits[row / 8] >> (row % 8) & 1) == 0;
}

static int64_t long_at(const struct ArrowArray *array, int64_t row, int64_t otherwise) {
    return is_null(array, row) ? otherwise : ((const int64_t *)array->buffers[1])[array->offset + row];
}

static int64_t int_at(const struct ArrowArray *array, int64_t row, int64_t otherwise) {
    return is_null(array, row) ? otherwise : ((const int32_t *)array->buffers[1])[array->offset + row];
}

static size_t text_length(const struct ArrowArray *array, int64_t row) {
    const int32_t *ends = (const int32_t *)array->buffers[1] + array->offset + row;
    return is_null(array, row) ? 0 : (size_t)(ends[1] - ends[0]);
}

/* Copy a text into the buffer, which has room for it; null for null. */
static const char *text_at(const struct ArrowArray *array, int64_t row, struct file_buffer *buffer) {
    if (is_null(array, row)) return NULL;
    size_t length = text_length(array, row);
    char *copy = buffer->text + buffer->used;
    const int32_t *starts = (const int32_t *)array->buffers[1] + array->offset;
    if (length > 0) memcpy(copy, (const char *)array->buffers[2] + starts[row], length);
    copy[length] = '\0';
    buffer->used += length + 1;
    return copy;
}

static bool has_room(struct file_buffer *buffer, size_t text, size_t names) {
    buffer->used = 0;
    if (text > buffer->room) {
        char *grown = realloc(buffer->text, 2 * text);
        if (grown == NULL) return false;
        buffer->text = grown;
        buffer->room = 2 * text;
    }
    if (names > buffer->names_room) {
        const char **grown = realloc(buffer->names, names * sizeof *grown);
        if (grown == NULL) return false;
        buffer->names = grown;
        buffer->names_room = names;
    }
    return true;
}

/* Fill in a file from a row of a batch; false where there is no memory for it. */
static bool read_file(const struct ArrowArray *batch, int64_t row, struct file_buffer *buffer, struct delta_file *file,
                      struct delta_deletion_vector *vector) {
    struct ArrowArray **columns = batch->children;
    const struct ArrowArray *map = columns[PARTITION_VALUES], *pairs = map->children[0];
    const struct ArrowArray *keys = pairs->children[0], *values = pairs->children[1], *dv = columns[DELETION_VECTOR];
    row += batch->offset;
    const int32_t *bounds = (const int32_t *)map->buffers[1] + map->offset + row;
    bool has_map = !is_null(map, row), has_vector = !is_null(dv, row);
    int64_t first = has_map ? pairs->offset + bounds[0] : 0, count = has_map ? bounds[1] - bounds[0] : 0;
    int64_t inner = dv->offset + row;
    size_t text = text_length(columns[PATH], row) + 1;
    for (int64_t at = first; at < first + count; at++) text += text_length(keys, at) + text_length(values, at) + 2;
    if (has_vector)
        text += text_length(dv->children[STORAGE_TYPE], inner) + text_length(dv->children[PATH_OR_INLINE], inner) + 2;
    if (!has_room(buffer, text, 2 * (size_t)count)) return false;
    *file = (struct delta_file){
        .path = text_at(columns[PATH], row, buffer),
        .size = long_at(columns[SIZE], row, -1),
        .modification_time = long_at(columns[MODIFICATION_TIME], row, -1),
        .num_records = long_at(columns[NUM_RECORDS], row, -1),
        .version = long_at(columns[VERSION], row, -1),
        .tier = ((const int8_t *)columns[TIER]->buffers[1])[columns[TIER]->offset + row],
        .partition_count = (int32_t)count,
        .partition_names = buffer->names,
        .partition_values = buffer->names + count,
    };
    for (int64_t at = 0; at < count; at++) {
        buffer->names[at] = text_at(keys, first + at, buffer);
        buffer->names[count + at] = text_at(values, first + at, buffer);
    }
    if (has_vector) {
        *vector = (struct delta_deletion_vector){
            text_at(dv->children[STORAGE_TYPE], inner, buffer), text_at(dv->children[PATH_OR_INLINE], inner, buffer),
            int_at(dv->children[OFFSET], inner, -1), int_at(dv->children[SIZE_IN_BYTES], inner, 0),
            long_at(dv->children[CARDINALITY], inner, 0)};
        file->deletion_vector = vector;
    }
    return true;
}

/* Hand the files of a stream to the caller until they end, it has enough, or another thread sets cancelled. Returns DONE
 * or a code, and releases the stream. */
static int each_file(struct ArrowArrayStream *stream, const atomic_int *cancelled,
                     bool (*take)(const struct delta_file *, void *), void *data) {
    struct file_buffer buffer = {0};
    struct delta_deletion_vector vector;
    struct delta_file file;
    struct ArrowArray batch;
    int code = DONE;
    for (bool more = true; more && code == DONE;) {
        if (stream->get_next(stream, &batch) != 0) {
            long ours = told(stream->get_last_error(stream), last_error, sizeof last_error);
            code = ours < 0 ? (int)ours : DELTA_ERROR_INTERNAL;
            break;
        }
        if (batch.release == NULL) break;
        for (int64_t row = 0; more && row < batch.length && !atomic_load(cancelled); row++) {
            if (!read_file(&batch, row, &buffer, &file, &vector)) {
                snprintf(last_error, sizeof last_error, "there is no memory for a file");
                code = DELTA_ERROR_INTERNAL;
                break;
            }
            more = take(&file, data);
        }
        batch.release(&batch);
        if (atomic_load(cancelled)) more = true; /* the next call tells so */
    }
    stream->release(stream);
    free(buffer.text);
    free(buffer.names);
    return code;
}

struct simple_callback {
    bool (*call)(const char *, int64_t);
};

static bool take_simple(const struct delta_file *file, void *data) {
    return ((struct simple_callback *)data)->call(file->path, file->size);
}

CFFI_DLLEXPORT int delta_scan_lazy(const char *table_path, const char *predicate_json, size_t limit,
                                   bool (*callback)(const char *, int64_t)) {
    if (table_path == NULL || callback == NULL) return refuse("delta_scan_lazy needs a table and a callback");
    int code = begin();
    if (code != DELTA_OK) return code;
    struct ArrowArrayStream stream;
    struct simple_callback simple = {callback};
    atomic_int cancelled = 0;
    code = lazydelta_simple(table_path, predicate_json, limit, (uintptr_t)&stream, (uintptr_t)&cancelled, last_error,
                            sizeof last_error);
    return end(code == DONE ? each_file(&stream, &cancelled, take_simple, &simple) : code);
}

CFFI_DLLEXPORT int delta_scan_files(const char *table_path, const char *options_json,
                                    bool (*callback)(const struct delta_file *, void *), void *user_data) {
    if (table_path == NULL || callback == NULL) return refuse("delta_scan_files needs a table and a callback");
    int code = begin();
    if (code != DELTA_OK) return code;
    struct ArrowArrayStream stream;
    atomic_int cancelled = 0;
    code = lazydelta_stream(table_path, options_json, (uintptr_t)&stream, (uintptr_t)&cancelled, last_error,
                            sizeof last_error);
    return end(code == DONE ? each_file(&stream, &cancelled, callback, user_data) : code);
}

CFFI_DLLEXPORT int delta_deletion_vector_rows(const char *table_path, const char *options_json, const char *path,
                                              const struct delta_deletion_vector *vector,
                                              bool (*callback)(const uint64_t *, size_t, void *), void *user_data) {
    if (table_path == NULL || path == NULL || vector == NULL || callback == NULL || vector->storage_type == NULL ||
        vector->path_or_inline_dv == NULL)
        return refuse("delta_deletion_vector_rows needs a table, a file, its vector and a callback");
    int code = begin();
    if (code != DELTA_OK) return code;
    return end(lazydelta_vector(table_path, options_json, path, vector->storage_type, vector->path_or_inline_dv,
                                vector->offset, vector->size_in_bytes, vector->cardinality, callback, user_data,
                                last_error, sizeof last_error));
}

CFFI_DLLEXPORT int delta_scan_lazy_ex(const char *table_path, const char *options_json,
                                      bool (*callback)(const char *, void *), void *user_data) {
    if (table_path == NULL || callback == NULL) return refuse("delta_scan_lazy_ex needs a table and a callback");
    int code = begin();
    if (code != DELTA_OK) return code;
    return end(lazydelta_objects(table_path, options_json, callback, user_data, last_error, sizeof last_error));
}

CFFI_DLLEXPORT int delta_scan_stream(const char *table_path, const char *options_json, struct ArrowArrayStream *out) {
    if (table_path == NULL || out == NULL) return refuse("delta_scan_stream needs a table and a place for the stream");
    int code = begin();
    if (code != DELTA_OK) return code;
    struct counted_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        leave();
        snprintf(last_error, sizeof last_error, "there is no memory for a stream");
        return DELTA_ERROR_INTERNAL;
    }
    uintptr_t inner = (uintptr_t)&stream->inner;
    code = end(lazydelta_stream(table_path, options_json, inner, 0, last_error, sizeof last_error));
    if (code != DELTA_OK) {
        free(stream);
        return code;
    }
    *out = (struct ArrowArrayStream){stream_get_schema, stream_get_next, stream_get_last_error, stream_release, stream};
    return DELTA_OK;
}

/* An open table is a name that no path can be: Python's half knows the table by it. */
struct delta_table {
    char name[32];
};

CFFI_DLLEXPORT int delta_lazy_open(const char *table_path, const char *options_json, struct delta_table **out) {
    if (table_path == NULL || out == NULL) return refuse("delta_lazy_open needs a path and a place for the table");
    *out = NULL;
    int code = begin();
    if (code != DELTA_OK) return code;
    struct delta_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        leave();
        snprintf(last_error, sizeof last_error, "there is no memory for a table");
        return DELTA_ERROR_INTERNAL;
    }
    code = end(lazydelta_open(table_path, options_json, table->name, sizeof table->name, last_error, sizeof last_error));
    if (code == DELTA_OK)
        *out = table;
    else
        free(table);
    return code;
}

CFFI_DLLEXPORT void delta_lazy_close(struct delta_table *table) {
    if (table == NULL) return;
    if (begin() == DELTA_OK) end(lazydelta_close(table->name, last_error, sizeof last_error));
    free(table);
}

CFFI_DLLEXPORT int delta_lazy_refresh(struct delta_table *table) {
    if (table == NULL) return refuse("delta_lazy_refresh needs a table");
    int code = begin();
    return code == DELTA_OK ? end(lazydelta_refresh(table->name, last_error, sizeof last_error)) : code;
}

CFFI_DLLEXPORT int delta_lazy_scan(struct delta_table *table, const char *options_json,
                                   bool (*callback)(const struct delta_file *, void *), void *user_data) {
    if (table == NULL || callback == NULL) return refuse("delta_lazy_scan needs a table and a callback");
    return delta_scan_files(table->name, options_json, callback, user_data);
}

CFFI_DLLEXPORT int delta_lazy_stream(struct delta_table *table, const char *options_json, struct ArrowArrayStream *out) {
    if (table == NULL) return refuse("delta_lazy_stream needs a table");
    return delta_scan_stream(table->name, options_json, out);
}

CFFI_DLLEXPORT int delta_scan_metrics(const char *scan_id, char *buffer, size_t size) {
    if (scan_id == NULL) return refuse("delta_scan_metrics needs a scan_id");
    int code = begin();
    if (code != DELTA_OK) return code;
    /* One more than the length, so that 0 stays what a Python that did not start returns. */
    int length = lazydelta_metrics(scan_id, buffer, buffer == NULL ? 0 : size, last_error, sizeof last_error);
    if (length <= 0) return end(length);
    leave();
    return length - 1;
}

CFFI_DLLEXPORT int delta_scan_cancel(const char *scan_id) {
    if (scan_id == NULL) return refuse("delta_scan_cancel needs a scan_id");
    int code = begin();
    if (code != DELTA_OK) return code;
    /* One more than there were, so that 0 stays what a Python that did not start returns. */
    int found = lazydelta_cancel(scan_id, last_error, sizeof last_error);
    if (found <= 0) return end(found);
    leave();
    return found - 1;
}
