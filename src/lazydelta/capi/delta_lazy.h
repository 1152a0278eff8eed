/* libdelta_lazy: lazy scans of Delta tables from C.
 *
 * Every function may be called from any thread, any number of times and at the same time. The first call starts a
 * Python inside this process, which takes about a second; none of the host's signal handlers are touched. Texts are
 * UTF-8. Pointers that a callback is given are valid until it returns.
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
#define DELTA_ERROR_CANCELLED (-6)   /* delta_scan_cancel was called */
#define DELTA_ERROR_INTERNAL (-7)    /* anything else */
#define DELTA_ERROR_PYTHON (-8)      /* the Python inside could not be started, or has no lazydelta */

struct ArrowArrayStream; /* of Arrow's C stream interface, whose header the caller has */

/* The version of lazydelta that this library was built from; starts nothing. */
const char *delta_version(void);

/* What went wrong in the last call of this thread that returned an error; never null; valid until its next call. */
const char *delta_last_error(void);

/* Call back for every active file that may hold rows matching the predicate, as it is found.
 * predicate_json is null for all files, or a predicate: {"date": "2026-02-08"}, {"n": {">=": 3}}, {"or": [...]} ...
 * limit counts files, 0 means none. The callback returns false to stop, which is no error. */
int delta_scan_lazy(const char *table_path, const char *predicate_json, size_t limit,
                    bool (*callback)(const char *path, int64_t size));

/* The same with options, each file as a JSON object, and the caller's data. options_json is null or an object with
 *   where            a predicate as above, or SQL text
 *   limit, row_limit, strategy ("auto", "reverse", "forward"), stats_columns, version
 *   storage_options, options   as in Python
 *   scan_id          a name for delta_scan_cancel */
int delta_scan_lazy_ex(const char *table_path, const char *options_json,
                       bool (*callback)(const char *file_json, void *user_data), void *user_data);

/* The same as a stream of Arrow record batches; options_json may also have "of": "rows" (default "files"), and then
 * "columns". The caller releases the stream, which ends the scan. */
int delta_scan_stream(const char *table_path, const char *options_json, struct ArrowArrayStream *out);

/* Stop the scans of this scan_id from any thread: they begin no further request, and return DELTA_ERROR_CANCELLED.
 * Returns how many there were; a scan that waits for storage notices when the request that is under way ends. */
int delta_scan_cancel(const char *scan_id);

#ifdef __cplusplus
}
#endif
#endif
