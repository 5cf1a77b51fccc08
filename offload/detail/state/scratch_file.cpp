// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/state/scratch_file.h"

#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "offload/commit_table.h"
#include "offload/detail/state/folder_checks.h"

namespace spillway::offload::detail {

namespace {

constexpr std::string_view prefix = "spillway.scratch.";

bool is_run_id(std::string_view text) {
    try {
        static_cast<void>(RunId::parse(text));
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

}  // namespace

bool is_scratch_name(std::string_view name) {
    return name.starts_with(prefix) && is_run_id(name.substr(prefix.size()));
}

nvme::DirectFile make_scratch_file(const std::filesystem::path& folder) {
    return {check_nvme(folder) / (std::string(prefix) + RunId::random().text()),
            nvme::OpenMode::create_unnamed, nvme::DirectMode::automatic};
}

bool is_left_scratch_file(const std::filesystem::path& path) {
    std::error_code ignored;
    return is_scratch_name(path.filename().string()) &&
           std::filesystem::symlink_status(path, ignored).type() ==
               std::filesystem::file_type::regular &&
           std::filesystem::file_size(path, ignored) == 0;
}

}  // namespace spillway::offload::detail
