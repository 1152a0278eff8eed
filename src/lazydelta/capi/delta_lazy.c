/* The C half of libdelta_lazy. cffi makes the other half, behind which Python answers.
 *
 * The functions that cffi makes return 0 when Python cannot be started, so 0 never means success between the halves:
 * a host whose Python is broken gets an error code, and not a table without files.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "delta_lazy.h"

#define DONE 1 /* between the halves; errors are the negative codes of the header */
#define LONGEST 4096

CFFI_DLLEXPORT int lazydelta_files(const char *, const char *, size_t, bool (*)(const char *, int64_t), char *, size_t);
CFFI_DLLEXPORT int lazydelta_objects(const char *, const char *, bool (*)(const char *, void *), void *, char *, size_t);
CFFI_DLLEXPORT int lazydelta_stream(const char *, const char *, uintptr_t, char *, size_t);
CFFI_DLLEXPORT int lazydelta_cancel(const char *, char *, size_t);

static _Thread_local char last_error[LONGEST];
static const char *python_missing = NULL;
static wchar_t program_name[PATH_MAX];
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* A host that loads this library with RTLD_LOCAL (Java, .NET, dlopen by default) hides libpython's symbols from
 * Python's own extension modules. It is there already, as our dependency; it is made global here. */
__attribute__((constructor)) static void promote_python(void) {
    if (dlopen(DELTA_LAZY_LIBPYTHON, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL) == NULL)
        python_missing = "libdelta_lazy: " DELTA_LAZY_LIBPYTHON " cannot be made visible to Python's modules";
}

static bool has_python(const char *folder, char *found) {
    struct stat about;
    char config[PATH_MAX + 16];
    snprintf(config, sizeof config, "%s/pyvenv.cfg", folder);
    if (stat(config, &about) != 0) return false;
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

static bool begin(void) {
    last_error[0] = '\0';
    pthread_once(&prepared, find_environment);
    if (python_missing == NULL) return true;
    snprintf(last_error, sizeof last_error, "%s", python_missing);
    return false;
}

static int end(int code) {
    if (code == DONE) return DELTA_OK;
    if (code < 0) return code;
    snprintf(last_error, sizeof last_error, "the Python of libdelta_lazy could not be started; standard error has why");
    return DELTA_ERROR_PYTHON;
}

static int refuse(const char *why) {
    snprintf(last_error, sizeof last_error, "%s", why);
    return DELTA_ERROR_ARGUMENT;
}

CFFI_DLLEXPORT const char *delta_version(void) { return DELTA_LAZY_VERSION; }

CFFI_DLLEXPORT const char *delta_last_error(void) { return last_error; }

CFFI_DLLEXPORT int delta_scan_lazy(const char *table_path, const char *predicate_json, size_t limit,
                                   bool (*callback)(const char *, int64_t)) {
    if (!begin()) return DELTA_ERROR_PYTHON;
    if (table_path == NULL || callback == NULL) return refuse("delta_scan_lazy needs a table and a callback");
    return end(lazydelta_files(table_path, predicate_json, limit, callback, last_error, sizeof last_error));
}

CFFI_DLLEXPORT int delta_scan_lazy_ex(const char *table_path, const char *options_json,
                                      bool (*callback)(const char *, void *), void *user_data) {
    if (!begin()) return DELTA_ERROR_PYTHON;
    if (table_path == NULL || callback == NULL) return refuse("delta_scan_lazy_ex needs a table and a callback");
    return end(lazydelta_objects(table_path, options_json, callback, user_data, last_error, sizeof last_error));
}

CFFI_DLLEXPORT int delta_scan_stream(const char *table_path, const char *options_json, struct ArrowArrayStream *out) {
    if (!begin()) return DELTA_ERROR_PYTHON;
    if (table_path == NULL || out == NULL) return refuse("delta_scan_stream needs a table and a place for the stream");
    return end(lazydelta_stream(table_path, options_json, (uintptr_t)out, last_error, sizeof last_error));
}

CFFI_DLLEXPORT int delta_scan_cancel(const char *scan_id) {
    if (!begin()) return DELTA_ERROR_PYTHON;
    if (scan_id == NULL) return refuse("delta_scan_cancel needs a scan_id");
    /* One more than there were, so that 0 stays what a Python that did not start returns. */
    int found = lazydelta_cancel(scan_id, last_error, sizeof last_error);
    return found > 0 ? found - 1 : end(found);
}
