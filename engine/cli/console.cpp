// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/console.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <system_error>

#include "engine/interop/atomic_file.h"
#include "nvme/links.h"

namespace spillway::engine {
namespace {

constexpr std::string_view erase_line = "\r\x1b[2K";

void replace_file(const std::filesystem::path& path, const std::string& text) {
    namespace fs = std::filesystem;
    // A device or pipe (/dev/stdout, a shell's >(...)) cannot be replaced, only written to; nor
    // must a link of /dev be, whatever it names. Another link stays, and what it names is replaced.
    const auto status = fs::status(path);
    const bool is_stream = fs::is_symlink(path) && path.native().starts_with("/dev/");
    if (!is_stream && (!fs::exists(status) || fs::is_regular_file(status))) {
        write_file_atomically(nvme::behind_links(path), text);
        return;
    }
    std::ofstream file(path, std::ios::binary | std::ios::app);
    file << text << std::flush;
    if (!file)
        throw std::system_error(EIO, std::generic_category(), "cannot write " + path.string());
}

}  // namespace

Console::Console(std::ostream& human, std::ostream& results, HumanStream kind, std::size_t columns)
    : human_(human), results_(results), kind_(kind), columns_(columns) {}

void Console::line(std::string_view text) {
    const std::scoped_lock lock(mutex_);
    erase_progress_locked();
    human_ << text << '\n' << std::flush;
}

void Console::warning(std::string_view text) {
    line("warning: " + std::string(text));
}

void Console::error(std::string_view text) {
    line("error: " + std::string(text));
}

void Console::progress(std::string_view text) {
    if (kind_ == HumanStream::plain)
        return;
    const std::scoped_lock lock(mutex_);
    erase_progress_locked();
    // A full last column would make some terminals wrap, and the line could not be erased.
    human_ << text.substr(0, columns_ > 1 ? columns_ - 1 : text.size()) << std::flush;
    progress_shown_ = true;
}

void Console::clear_progress() {
    const std::scoped_lock lock(mutex_);
    erase_progress_locked();
    human_ << std::flush;
}

void Console::erase_progress_locked() {
    if (progress_shown_)
        human_ << erase_line;
    progress_shown_ = false;
}

void Console::result(std::string_view text) {
    const std::scoped_lock lock(mutex_);
    erase_progress_locked();
    errno = 0;
    results_ << text << std::flush;
    if (!results_)
        throw std::system_error(errno == 0 ? EIO : errno, std::generic_category(),
                                "cannot write to standard output");
}

void Console::write_json(std::string_view json, const std::string& destination) {
    const auto text = std::string(json) + "\n";
    if (destination == "-")
        result(text);
    else
        replace_file(destination, text);
}

}  // namespace spillway::engine
