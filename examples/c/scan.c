/* List the files of a Delta table as they are found: scan TABLE [OPTIONS-JSON] [FILES]
 *
 *   cc scan.c -I build/capi -L build/capi -ldelta_lazy -Wl,-rpath,$PWD/build/capi -o scan
 *   ./scan /data/table '{"where": "hour >= 10", "strategy": "reverse"}' 5
 *
 * Prints one JSON object a line and stops after so many files; the exit code is 1 for an error.
 */
#include <stdio.h>
#include <stdlib.h>

#include "delta_lazy.h"

struct listing {
    long wanted; /* below zero: all */
    long printed;
};

static bool print_file(const char *file_json, void *user_data) {
    struct listing *listing = user_data;
    puts(file_json);
    listing->printed += 1;
    return listing->wanted < 0 || listing->printed < listing->wanted;
}

int main(int count, char **arguments) {
    if (count < 2) {
        fprintf(stderr, "usage: %s TABLE [OPTIONS-JSON] [FILES]\n", arguments[0]);
        return 2;
    }
    struct listing listing = {count > 3 ? atol(arguments[3]) : -1, 0};
    const char *options = count > 2 && *arguments[2] != '\0' ? arguments[2] : NULL;
    if (delta_scan_lazy_ex(arguments[1], options, print_file, &listing) != DELTA_OK) {
        fprintf(stderr, "error: %s\n", delta_last_error());
        return 1;
    }
    fprintf(stderr, "%ld files, by libdelta_lazy %s\n", listing.printed, delta_version());
    return 0;
}
