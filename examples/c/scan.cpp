// List the files of a Delta table with their deleted rows: scan TABLE [OPTIONS-JSON]
//
//   c++ -std=c++17 scan.cpp -I build/capi -L build/capi -ldelta_lazy -Wl,-rpath,$PWD/build/capi -o scan
//
// The options may have "handles_deletion_vectors": true; without it, a file with deleted rows is an error.
#include <iostream>

#include "delta_lazy.hpp"

int main(int count, char **arguments) {
    if (count < 2) {
        std::cerr << "usage: " << arguments[0] << " TABLE [OPTIONS-JSON]\n";
        return 2;
    }
    try {
        delta_lazy::Table table(arguments[1]);
        table.scan(count > 2 ? arguments[2] : "", [&](const delta_lazy::File &file) {
            std::cout << file.path << '\t' << file.size << '\t' << file.version.value_or(-1);
            for (const auto &each : file.partition_values) std::cout << '\t' << each.first << '=' << each.second.value_or("");
            for (auto row : delta_lazy::deleted_rows(arguments[1], file)) std::cout << ' ' << row;
            std::cout << '\n';
            return true;
        });
    } catch (const delta_lazy::Error &error) {
        std::cerr << "error " << error.code() << ": " << error.what() << '\n';
        return 1;
    }
    return 0;
}
