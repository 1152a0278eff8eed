/* A host that loads libdelta_lazy as .NET and Java do, with RTLD_LOCAL, and does what the tests ask for. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static int (*scan_ex)(const char *, const char *, bool (*)(const char *, void *), void *);
static int (*scan_stream)(const char *, const char *, struct ArrowArrayStream *);
static int (*scan_cancel)(const char *);
static const char *(*last_error)(void);

static bool print_path(const char *path, int64_t size) {
    printf("%s\t%lld\n", path, (long long)size);
    return true;
}

static bool count_one(const char *json, void *data) {
    (void)json;
    *(int *)data += 1;
    return true;
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

int main(int count, char **arguments) {
    const char *mode = arguments[2], *table = count > 3 ? arguments[3] : NULL;
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 9;
    }
    *(void **)&scan = dlsym(library, "delta_scan_lazy");
    *(void **)&scan_ex = dlsym(library, "delta_scan_lazy_ex");
    *(void **)&scan_stream = dlsym(library, "delta_scan_stream");
    *(void **)&scan_cancel = dlsym(library, "delta_scan_cancel");
    *(void **)&last_error = dlsym(library, "delta_last_error");

    if (strcmp(mode, "files") == 0) {
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
    } else if (strcmp(mode, "cancel") == 0) {
        pthread_t thread;
        int files;
        setenv("TABLE", table, 1);
        sem_init(&first_is_here, 0, 0);
        sem_init(&go_on, 0, 0);
        printf("none %d\n", scan_cancel("one"));
        pthread_create(&thread, NULL, scan_named, &files);
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
    }
    return 0;
}
