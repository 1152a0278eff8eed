/* libdelta_lazy: lazy scans of Delta tables from C.
 *
 * Every function may be called from any thread, any number of times and at the same time. The first call starts a
 * Python inside this process, which takes about a second; the host's signal handlers are left as they are. A thread that
 * calls needs 512 KB of stack. Texts are UTF-8. Pointers that a callback is given are valid until it returns.
 */
#ifndef DELTA_LAZY_H
#define DELTA_LAZY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DELTA_OK 0
#define DELTA_ERROR_ARGUMENT (-1)    /* an option, predicate or JSON text that makes no sense */
#define DELTA_ERROR_STORAGE (-2)     /* the store refused or failed, or access was denied */
#define DELTA_ERROR_NO_TABLE (-3)    /* there is no Delta table at this place, or no such version */
#define DELTA_ERROR_LOG (-4)         /* the log or a data file is there and cannot be read */
#define DELTA_ERROR_UNSUPPORTED (-5) /* the table needs a feature that is not implemented */
#define DELTA_ERROR_CANCELLED (-6)   /* delta_scan_cancel or delta_shutdown was called */
#define DELTA_ERROR_INTERNAL (-7)    /* anything else */
#define DELTA_ERROR_PYTHON (-8)      /* the Python inside could not be started, or has no lazydelta, or was left by fork */

struct ArrowArrayStream; /* of Arrow's C stream interface, whose header the caller has */

/* Which rows of a data file are deleted, as the log describes it. Reading the file without it returns deleted rows. */
struct delta_deletion_vector {
    const char *storage_type;       /* "u": a file of the table, "p": an absolute path, "i": inline */
    const char *path_or_inline_dv;  /* as logged */
    int64_t offset;                 /* where it begins in its file, or -1 */
    int64_t size_in_bytes;
    int64_t cardinality;            /* how many rows are deleted */
};

/* An active file. Later versions may add fields at the end. */
struct delta_file {
    const char *path; /* as logged: percent-encoded, relative to the table's root or absolute */
    int64_t size;
    int64_t modification_time; /* milliseconds since 1970 */
    int64_t num_records;       /* with the deleted ones; -1 where it is not known */
    int64_t version;           /* of the commit that added it; -1 for files of the checkpoint */
    int32_t tier;              /* 0: the commits after the checkpoint, 1 and 2: a sidecar, 3: the checkpoint */
    int32_t partition_count;
    const char *const *partition_names;
    const char *const *partition_values;                 /* as logged, null for null */
    const struct delta_deletion_vector *deletion_vector; /* null: all rows are live */
};

/* The version of lazydelta that this library was built from; starts nothing. */
const char *delta_version(void);

/* What went wrong in the last call of this thread that returned an error; never null; valid until its next call. */
const char *delta_last_error(void);

/* Call back for every active file that may hold rows matching the predicate, as it is found.
 * predicate_json is null for all files, or a predicate: {"date": "2026-02-08"}, {"n": {">=": 3}}, {"or": [...]} ...
 * limit counts files, 0 means none. The callback returns false to stop, which is no error. A file with a deletion vector
 * ends the scan with DELTA_ERROR_UNSUPPORTED: its path and size alone would make deleted rows live. */
int delta_scan_lazy(const char *table_path, const char *predicate_json, size_t limit,
                    bool (*callback)(const char *path, int64_t size));

/* The same with options, each file as a struct, and the caller's data. options_json is null or an object with
 *   where            a predicate as above, or SQL text
 *   limit, row_limit, strategy ("auto", "reverse", "forward")
 *   stats_columns    [] fills num_records; columns are for delta_scan_lazy_ex and delta_scan_stream
 *   version          a number, or a timestamp in ISO 8601
 *   storage_options, external_locations, options   as in Python
 *   handles_deletion_vectors   true: the caller leaves out deleted rows (delta_deletion_vector_rows says which);
 *                    without it, a file with a deletion vector ends the scan with DELTA_ERROR_UNSUPPORTED
 *   scan_id          a name for delta_scan_cancel */
int delta_scan_files(const char *table_path, const char *options_json,
                     bool (*callback)(const struct delta_file *file, void *user_data), void *user_data);

/* The same, each file as a JSON object with statistics, where stats_columns asks for them. */
int delta_scan_lazy_ex(const char *table_path, const char *options_json,
                       bool (*callback)(const char *file_json, void *user_data), void *user_data);

/* The same as a stream of Arrow record batches; options_json may also have "of": "rows" (default "files"), and then
 * "columns". Rows come without the deleted ones. The caller releases the stream, which ends the scan. Its functions return ECANCELED after
 * delta_scan_cancel and delta_shutdown, EINVAL for what makes no sense, and EIO for all else. */
int delta_scan_stream(const char *table_path, const char *options_json, struct ArrowArrayStream *out);

/* Call back with the positions of the deleted rows of a data file, ascending from 0, in pieces. path is that of the file
 * and vector its deletion vector, both as a scan gave them. options_json is null or has storage_options,
 * external_locations and options. The callback returns false to stop. */
int delta_deletion_vector_rows(const char *table_path, const char *options_json, const char *path,
                               const struct delta_deletion_vector *vector,
                               bool (*callback)(const uint64_t *rows, size_t count, void *user_data), void *user_data);

/* A table that is asked often: opened once at a version, with its caches and connections. options_json is null or has
 * version, storage_options, external_locations and options. Close it when no scan of it runs any more. */
struct delta_table;
int delta_lazy_open(const char *table_path, const char *options_json, struct delta_table **out);
void delta_lazy_close(struct delta_table *table);

/* Move an open table to its newest version, with one listing. Scans that run keep theirs. */
int delta_lazy_refresh(struct delta_table *table);

/* As delta_scan_files and delta_scan_stream, without the options of the table. Any number of threads may scan it. */
int delta_lazy_scan(struct delta_table *table, const char *options_json,
                    bool (*callback)(const struct delta_file *file, void *user_data), void *user_data);
int delta_lazy_stream(struct delta_table *table, const char *options_json, struct ArrowArrayStream *out);

/* Write the metrics of the newest scan of this scan_id into buffer, as a JSON object of delta.lazy.* names that ends with
 * a zero byte. The scan may run still; the last thousand are kept. Returns the length without the zero byte: where it is
 * not less than size, buffer has nothing, and may be null. */
int delta_scan_metrics(const char *scan_id, char *buffer, size_t size);

/* Stop the scans of this scan_id from any thread: they begin no further request, and return DELTA_ERROR_CANCELLED.
 * Returns how many there were; a scan that waits for storage notices when the request that is under way ends. */
int delta_scan_cancel(const char *scan_id);

/* Stop all scans and wait, ten seconds at most, until the calls of all other threads have returned; later calls return
 * DELTA_ERROR_CANCELLED. The process does it by itself when it exits: threads that scan may outlive main. */
void delta_shutdown(void);

#ifdef __cplusplus
}
#endif
#endif
