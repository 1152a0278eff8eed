// libdelta_lazy from C++17: errors are exceptions, and open tables close themselves. See delta_lazy.h for all options.
#ifndef DELTA_LAZY_HPP
#define DELTA_LAZY_HPP

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "delta_lazy.h"

namespace delta_lazy {

class Error : public std::runtime_error {
public:
    Error(int code, const std::string &message) : std::runtime_error(message), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

inline int checked(int code) {
    if (code < 0) throw Error(code, delta_last_error());
    return code;
}

struct DeletionVector {
    std::string storage_type, path_or_inline_dv;
    std::int64_t offset, size_in_bytes, cardinality;
};

// A file with texts of its own, which may be kept.
struct File {
    std::string path;
    std::int64_t size, modification_time;
    std::optional<std::int64_t> num_records, version;
    int tier;
    std::map<std::string, std::optional<std::string>> partition_values;
    std::optional<DeletionVector> deletion_vector;

    explicit File(const delta_file &file)
        : path(file.path), size(file.size), modification_time(file.modification_time), tier(file.tier) {
        if (file.num_records >= 0) num_records = file.num_records;
        if (file.version >= 0) version = file.version;
        for (std::int32_t at = 0; at < file.partition_count; at++) {
            const char *value = file.partition_values[at];
            partition_values[file.partition_names[at]] = value ? std::optional<std::string>(value) : std::nullopt;
        }
        if (const delta_deletion_vector *found = file.deletion_vector)
            deletion_vector = DeletionVector{found->storage_type, found->path_or_inline_dv, found->offset,
                                             found->size_in_bytes, found->cardinality};
    }
};

// Returns false to stop the scan. An exception of it stops the scan and leaves it.
using OnFile = std::function<bool(const File &)>;

namespace detail {
struct Call {
    const OnFile &on_file;
    std::exception_ptr failure;
};

inline bool take(const delta_file *file, void *data) {
    Call *call = static_cast<Call *>(data);
    try {
        return call->on_file(File(*file));
    } catch (...) { // none may cross C
        call->failure = std::current_exception();
        return false;
    }
}

template <typename Scan> void run(const OnFile &on_file, Scan scan) {
    Call call{on_file, nullptr};
    int code = scan(&call);
    if (call.failure) std::rethrow_exception(call.failure);
    checked(code);
}
} // namespace detail

inline void scan_files(const std::string &table, const std::string &options_json, const OnFile &on_file) {
    const char *options = options_json.empty() ? nullptr : options_json.c_str();
    detail::run(on_file, [&](void *call) { return delta_scan_files(table.c_str(), options, detail::take, call); });
}

// The positions of the deleted rows of a file, ascending.
inline std::vector<std::uint64_t> deleted_rows(const std::string &table, const File &file,
                                               const std::string &options_json = "") {
    std::vector<std::uint64_t> rows;
    if (!file.deletion_vector) return rows;
    const DeletionVector &known = *file.deletion_vector;
    const delta_deletion_vector vector{known.storage_type.c_str(), known.path_or_inline_dv.c_str(), known.offset,
                                       known.size_in_bytes, known.cardinality};
    const auto take = [](const std::uint64_t *piece, std::size_t count, void *data) {
        try {
            auto *all = static_cast<std::vector<std::uint64_t> *>(data);
            all->insert(all->end(), piece, piece + count);
            return true;
        } catch (...) {
            return false;
        }
    };
    checked(delta_deletion_vector_rows(table.c_str(), options_json.empty() ? nullptr : options_json.c_str(),
                                       file.path.c_str(), &vector, take, &rows));
    if (rows.size() != static_cast<std::size_t>(known.cardinality))
        throw Error(DELTA_ERROR_INTERNAL, "there is no memory for the deleted rows of " + file.path);
    return rows;
}

// An open table, which closes itself; it can be moved and not copied.
class Table {
public:
    explicit Table(const std::string &path, const std::string &options_json = "") {
        delta_table *opened = nullptr;
        checked(delta_lazy_open(path.c_str(), options_json.empty() ? nullptr : options_json.c_str(), &opened));
        table_.reset(opened);
    }

    void refresh() { checked(delta_lazy_refresh(table_.get())); }

    void scan(const std::string &options_json, const OnFile &on_file) const {
        const char *options = options_json.empty() ? nullptr : options_json.c_str();
        detail::run(on_file, [&](void *call) { return delta_lazy_scan(table_.get(), options, detail::take, call); });
    }

    std::vector<File> files(const std::string &options_json = "") const {
        std::vector<File> found;
        scan(options_json, [&](const File &file) { found.push_back(file); return true; });
        return found;
    }

    void stream(const std::string &options_json, ArrowArrayStream *out) const {
        checked(delta_lazy_stream(table_.get(), options_json.empty() ? nullptr : options_json.c_str(), out));
    }

private:
    struct Close {
        void operator()(delta_table *table) const { delta_lazy_close(table); }
    };
    std::unique_ptr<delta_table, Close> table_;
};

// The metrics of a scan by its scan_id, as JSON.
inline std::string metrics(const std::string &scan_id) {
    std::string text;
    for (int length = checked(delta_scan_metrics(scan_id.c_str(), nullptr, 0)); length > static_cast<int>(text.size());) {
        text.resize(length);
        length = checked(delta_scan_metrics(scan_id.c_str(), text.data(), text.size() + 1));
        if (length < static_cast<int>(text.size())) text.resize(length);
    }
    return text;
}

} // namespace delta_lazy
#endif
