/* A host that loads libdelta_lazy as .NET and Java do, with RTLD_LOCAL, and does what the tests ask for. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "delta_lazy.h"

/* As Arrow's specification of the C data and stream interfaces has them. */
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
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

static int (*scan)(const char *, const char *, size_t, bool (*)(const char *, int64_t));
static const char *(*last_error)(void);
static int (*scan_files)(const char *, const char *, bool (*)(const struct delta_file *, void *), void *);
static int (*vector_rows)(const char *, const char *, const char *, const struct delta_deletion_vector *,
                          bool (*)(const uint64_t *, size_t, void *), void *);
static int (*lazy_open)(const char *, const char *, struct delta_table **);
static void (*lazy_close)(struct delta_table *);
static int (*lazy_refresh)(struct delta_table *);
static int (*lazy_scan)(struct delta_table *, const char *, bool (*)(const struct delta_file *, void *), void *);
static int (*lazy_stream)(struct delta_table *, const char *, struct ArrowArrayStream *);
static int (*scan_metrics)(const char *, char *, size_t);
static int (*scan_ex)(const char *, const char *, bool (*)(const char *, void *), void *);
static int (*scan_stream)(const char *, const char *, struct ArrowArrayStream *);
static int (*scan_cancel)(const char *);
static void (*library_shutdown)(void);

static bool print_path(const char *path, int64_t size) {
    printf("%s\t%lld\n", path, (long long)size);
    return true;
}

static bool print_rows(const uint64_t *rows, size_t count, void *data) {
    (void)data;
    for (size_t at = 0; at < count; at++) printf(" %llu", (unsigned long long)rows[at]);
    return true;
}

/* A line for each file, in JSON where it has no texts that need escapes, and one with the rows of its vector. */
static bool print_struct(const struct delta_file *file, void *data) {
    printf("%s\t%lld\t%lld\t%lld\t%lld\t%d", file->path, (long long)file->size, (long long)file->modification_time,
           (long long)file->num_records, (long long)file->version, file->tier);
    for (int at = 0; at < file->partition_count; at++)
        printf("\t%s=%s", file->partition_names[at], file->partition_values[at] ? file->partition_values[at] : "(null)");
    const struct delta_deletion_vector *vector = file->deletion_vector;
    if (vector != NULL) {
        printf("\t%s %s %lld %lld %lld:", vector->storage_type, vector->path_or_inline_dv, (long long)vector->offset,
               (long long)vector->size_in_bytes, (long long)vector->cardinality);
        int code = vector_rows(data, NULL, file->path, vector, print_rows, NULL);
        if (code != 0) printf(" code %d error %s", code, last_error());
    }
    printf("\n");
    return true;
}

static bool count_one(const char *json, void *data) {
    (void)json;
    *(int *)data += 1;
    return true;
}

static bool count_struct(const struct delta_file *file, void *data) {
    return count_one(file->path, data);
}

struct shared_job { struct delta_table *table; const char *options; int rounds, files, wrong; };

static void *scan_shared(void *data) {
    struct shared_job *job = data;
    for (int round = 0; round < job->rounds; round++)
        if (lazy_scan(job->table, job->options, count_struct, &job->files) != 0) job->wrong++;
    return NULL;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* So many threads scan one open table, so many times each. */
static int scan_together(const char *path, const char *options, int threads, int rounds, bool timed) {
    struct delta_table *table = NULL;
    struct shared_job jobs[64];
    pthread_t started[64];
    int files = 0, wrong = 0, code = lazy_open(path, NULL, &table);
    if (code != 0) {
        printf("code %d error %s\n", code, last_error());
        return 0;
    }
    lazy_scan(table, options, count_struct, &files);
    files = 0;
    double began = seconds_now();
    for (int at = 0; at < threads; at++) {
        jobs[at] = (struct shared_job){table, options, rounds, 0, 0};
        pthread_create(&started[at], NULL, scan_shared, &jobs[at]);
    }
    for (int at = 0; at < threads; at++) {
        pthread_join(started[at], NULL);
        files += jobs[at].files;
        wrong += jobs[at].wrong;
    }
    if (timed) printf("threads %d: %.2f ms a scan\n", threads, (seconds_now() - began) * 1000 / (threads * rounds));
    else printf("files %d wrong %d\n", files, wrong);
    lazy_close(table);
    return 0;
}

struct stopping { int seen, wanted; };

static bool count_some(const char *json, void *data) {
    (void)json;
    struct stopping *stopping = data;
    return ++stopping->seen < stopping->wanted;
}

struct job { const char *table; int index, rounds, files, wrong; };

static void *work(void *data) {
    struct job *job = data;
    for (int round = 0; round < job->rounds; round++) {
        if (job->index % 2 == 0) {
            int files = 0;
            if (scan_ex(job->table, NULL, count_one, &files) != 0 || *last_error() != '\0') job->wrong++;
            job->files += files;
        } else {
            /* Each thread has an error of its own. */
            char missing[64];
            snprintf(missing, sizeof missing, "/nowhere/thread-%d", job->index);
            if (scan_ex(missing, NULL, count_one, &job->files) != DELTA_ERROR_NO_TABLE) job->wrong++;
            if (strstr(last_error(), missing) == NULL) job->wrong++;
        }
    }
    return NULL;
}

static sem_t first_is_here, go_on;

static bool wait_at_the_first(const char *json, void *data) {
    (void)json;
    *(int *)data += 1;
    sem_post(&first_is_here);
    sem_wait(&go_on);
    return true;
}

static bool wait_at_the_first_struct(const struct delta_file *file, void *data) {
    (void)file;
    return wait_at_the_first(NULL, data);
}

static void *scan_named_structs(void *data) {
    int *files = data;
    *files = 0;
    int code = scan_files(getenv("TABLE"), "{\"scan_id\": \"one\"}", wait_at_the_first_struct, files);
    printf("code %d files %d error %s\n", code, *files, last_error());
    return NULL;
}

static void *scan_named(void *data) {
    int *files = data;
    *files = 0;
    int code = scan_ex(getenv("TABLE"), "{\"scan_id\": \"one\"}", wait_at_the_first, files);
    printf("code %d files %d error %s\n", code, *files, last_error());
    return NULL;
}

static int read_stream(const char *table, const char *options, int most) {
    struct ArrowArrayStream stream;
    struct ArrowSchema schema;
    struct ArrowArray array;
    long rows = 0;
    int batches = 0, code = scan_stream(table, options, &stream);
    if (code != 0) {
        printf("code %d error %s\n", code, last_error());
        return 0;
    }
    if (stream.get_schema(&stream, &schema) != 0) return 1;
    printf("columns");
    for (int64_t at = 0; at < schema.n_children; at++) printf(" %s", schema.children[at]->name);
    schema.release(&schema);
    while (batches != most) {
        if (stream.get_next(&stream, &array) != 0) {
            printf("\nerror %s\n", stream.get_last_error(&stream));
            break;
        }
        if (array.release == NULL) break;
        rows += array.length;
        batches += 1;
        array.release(&array);
    }
    stream.release(&stream);
    printf("\nrows %ld\n", rows);
    return 0;
}

static bool announce(const char *json, void *data) {
    (void)json;
    if (*(int *)data == 0) sem_post(&first_is_here);
    *(int *)data = 1;
    return true;
}

/* Scans again and again, until the library is shut down. */
static void *scan_for_ever(void *data) {
    int seen = 0;
    while (scan_ex(data, NULL, announce, &seen) == 0);
    return NULL;
}

static void *stream_for_ever(void *data) {
    struct ArrowArrayStream stream;
    struct ArrowArray array;
    int seen = 0;
    while (scan_stream(data, "{\"of\": \"rows\"}", &stream) == 0) {
        while (stream.get_next(&stream, &array) == 0 && array.release != NULL) {
            array.release(&array);
            announce(NULL, &seen);
        }
        stream.release(&stream);
    }
    return NULL;
}

static bool leave_the_process(const char *json, void *data) {
    (void)json;
    (void)data;
    exit(3);
}

static void *scan_once(void *data) {
    int files = 0, code = scan_ex(data, NULL, count_one, &files);
    printf("code %d files %d error %s\n", code, files, last_error());
    return NULL;
}

static int cancel_stream(const char *table) {
    struct ArrowArrayStream stream;
    struct ArrowArray array;
    int code = scan_stream(table, "{\"of\": \"rows\", \"scan_id\": \"one\"}", &stream);
    if (code != 0 || stream.get_next(&stream, &array) != 0) return 1;
    array.release(&array);
    printf("stopped %d\n", scan_cancel("one"));
    while ((code = stream.get_next(&stream, &array)) == 0 && array.release != NULL) array.release(&array);
    printf("is ECANCELED %d: %s\n", code == ECANCELED, stream.get_last_error(&stream));
    stream.release(&stream);
    return 0;
}

int main(int count, char **arguments) {
    const char *mode = arguments[2], *table = count > 3 ? arguments[3] : NULL;
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 9;
    }
    *(void **)&scan = dlsym(library, "delta_scan_lazy");
    *(void **)&scan_files = dlsym(library, "delta_scan_files");
    *(void **)&vector_rows = dlsym(library, "delta_deletion_vector_rows");
    *(void **)&lazy_open = dlsym(library, "delta_lazy_open");
    *(void **)&lazy_close = dlsym(library, "delta_lazy_close");
    *(void **)&lazy_refresh = dlsym(library, "delta_lazy_refresh");
    *(void **)&lazy_scan = dlsym(library, "delta_lazy_scan");
    *(void **)&lazy_stream = dlsym(library, "delta_lazy_stream");
    *(void **)&scan_metrics = dlsym(library, "delta_scan_metrics");
    *(void **)&scan_ex = dlsym(library, "delta_scan_lazy_ex");
    *(void **)&scan_stream = dlsym(library, "delta_scan_stream");
    *(void **)&scan_cancel = dlsym(library, "delta_scan_cancel");
    *(void **)&last_error = dlsym(library, "delta_last_error");

    *(void **)&library_shutdown = dlsym(library, "delta_shutdown");

    if (strcmp(mode, "interrupt") == 0) {
        signal(SIGINT, SIG_DFL);
        scan_once((void *)table);
        fflush(stdout);
        raise(SIGINT);
        printf("still here\n");
    } else if (strcmp(mode, "leave") == 0) {
        pthread_t thread;
        sem_init(&first_is_here, 0, 0);
        for (int at = 0; at < 4; at++) {
            pthread_create(&thread, NULL, at % 2 == 0 ? scan_for_ever : stream_for_ever, (void *)table);
            sem_wait(&first_is_here);
        }
    } else if (strcmp(mode, "exit") == 0) {
        scan_ex(table, NULL, leave_the_process, NULL);
    } else if (strcmp(mode, "shutdown") == 0) {
        scan_once((void *)table);
        library_shutdown();
        library_shutdown();
        scan_once((void *)table);
        read_stream(table, NULL, -1);
    } else if (strcmp(mode, "fork") == 0) {
        int files = 0, code = scan_files(table, NULL, count_struct, &files);
        pid_t child = fork();
        if (child == 0) {
            alarm(60); /* a call that waits for threads that are not there would do so for ever */
            code = scan_files(table, NULL, count_struct, &files);
            printf("code %d error %s\n", code, last_error());
            fflush(stdout);
            exit(4);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        code = scan_files(table, NULL, count_struct, &files);
        printf("code %d files %d\n", code, files);
    } else if (strcmp(mode, "stack") == 0) {
        pthread_t thread;
        pthread_attr_t small;
        pthread_attr_init(&small);
        pthread_attr_setstacksize(&small, atol(arguments[4]) * 1024);
        pthread_create(&thread, &small, scan_once, (void *)table);
        pthread_join(thread, NULL);
    } else if (strcmp(mode, "cancel stream") == 0) {
        return cancel_stream(table);
    } else if (strcmp(mode, "objects") == 0) {
        int files = 0, code = scan_ex(table, arguments[4], count_one, &files);
        printf("code %d files %d error %s\n", code, files, last_error());
    } else if (strcmp(mode, "files") == 0) {
        int code = scan(table, count > 4 && *arguments[4] ? arguments[4] : NULL, count > 5 ? atol(arguments[5]) : 0, print_path);
        if (code != 0) printf("code %d error %s\n", code, last_error());
    } else if (strcmp(mode, "stop") == 0) {
        for (int wanted = 1; wanted <= 3; wanted++) {
            struct stopping stopping = {0, wanted};
            int code = scan_ex(table, NULL, count_some, &stopping);
            printf("code %d files %d\n", code, stopping.seen);
        }
        int all = 0;
        printf("code %d", scan_ex(table, NULL, count_one, &all));
        printf(" files %d\n", all);
    } else if (strcmp(mode, "threads") == 0) {
        enum { THREADS = 8 };
        pthread_t threads[THREADS];
        struct job jobs[THREADS];
        int files = 0, wrong = 0;
        for (int at = 0; at < THREADS; at++) {
            jobs[at] = (struct job){table, at, atoi(arguments[4]), 0, 0};
            pthread_create(&threads[at], NULL, work, &jobs[at]);
        }
        for (int at = 0; at < THREADS; at++) {
            pthread_join(threads[at], NULL);
            files += jobs[at].files;
            wrong += jobs[at].wrong;
        }
        printf("files %d wrong %d\n", files, wrong);
    } else if (strcmp(mode, "together") == 0) {
        return scan_together(table, *arguments[4] ? arguments[4] : NULL, atoi(arguments[5]), atoi(arguments[6]), count > 7);
    } else if (strcmp(mode, "open") == 0) {
        struct delta_table *opened = NULL;
        struct ArrowArrayStream stream;
        struct ArrowArray array;
        char text[8192];
        int files = 0, code = lazy_open(table, "{\"version\": 1}", &opened);
        printf("code %d\n", code);
        lazy_scan(opened, "{\"scan_id\": \"a\"}", count_struct, &files);
        printf("files %d\n", files);
        printf("code %d error %s\n", lazy_scan(opened, "{\"version\": 2}", count_struct, &files), last_error());
        printf("code %d\n", lazy_refresh(opened));
        files = 0;
        lazy_scan(opened, "{\"scan_id\": \"b\"}", count_struct, &files);
        printf("files %d\n", files);
        if (lazy_stream(opened, "{\"of\": \"rows\"}", &stream) != 0) return 1;
        long rows = 0;
        while (stream.get_next(&stream, &array) == 0 && array.release != NULL) {
            rows += array.length;
            array.release(&array);
        }
        stream.release(&stream);
        printf("rows %ld\n", rows);
        lazy_close(opened);
        lazy_close(NULL);
        opened = NULL;
        printf("code %d\n", lazy_open("/nowhere", NULL, &opened));
        printf("closed %d\n", opened == NULL);
        int length = scan_metrics("b", NULL, 0);
        printf("same %d\n", length == scan_metrics("b", text, sizeof text) && length == (int)strlen(text));
        printf("%s\n", text);
        printf("code %d error %s\n", scan_metrics("none", text, sizeof text), last_error());
    } else if (strcmp(mode, "calls") == 0) {
        /* A call and its options after another; one process, because starting Python takes a second. */
        for (int at = 4; at + 1 < count; at += 2) {
            const char *call = arguments[at], *options = *arguments[at + 1] ? arguments[at + 1] : NULL;
            int files = 0, code = 0;
            printf("%s\n", call);
            if (strcmp(call, "simple") == 0) code = scan(table, options, 0, print_path);
            else if (strcmp(call, "structs") == 0) code = scan_files(table, options, print_struct, (void *)table);
            else if (strcmp(call, "objects") == 0) code = scan_ex(table, options, count_one, &files);
            else read_stream(table, options, -1);
            printf("code %d files %d error %s\n", code, files, last_error());
        }
    } else if (strcmp(mode, "cancel") == 0 || strcmp(mode, "cancel structs") == 0) {
        pthread_t thread;
        int files;
        setenv("TABLE", table, 1);
        sem_init(&first_is_here, 0, 0);
        sem_init(&go_on, 0, 0);
        printf("none %d\n", scan_cancel("one"));
        pthread_create(&thread, NULL, strcmp(mode, "cancel") == 0 ? scan_named : scan_named_structs, &files);
        sem_wait(&first_is_here);
        printf("stopped %d\n", scan_cancel("one"));
        sem_post(&go_on);
        pthread_join(thread, NULL);
        printf("after %d\n", scan_cancel("one"));
    } else if (strcmp(mode, "stream") == 0) {
        return read_stream(table, count > 4 && *arguments[4] ? arguments[4] : NULL, count > 5 ? atoi(arguments[5]) : -1);
    } else if (strcmp(mode, "null") == 0) {
        printf("code %d error %s\n", scan(NULL, NULL, 0, print_path), last_error());
        printf("code %d error %s\n", scan_ex("x", NULL, NULL, NULL), last_error());
        printf("code %d error %s\n", scan_files("x", NULL, NULL, NULL), last_error());
        printf("code %d error %s\n", vector_rows("x", NULL, "y", NULL, print_rows, NULL), last_error());
    }
    return 0;
}
