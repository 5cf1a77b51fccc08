// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <iosfwd>
#include <mutex>
#include <string>
#include <string_view>

namespace spillway::engine {

/// Whether the human stream is a terminal: only there is a progress line redrawn in place.
enum class HumanStream { terminal, plain };

/// Where a verb's output goes: text for people to one stream (stderr in the program), results for
/// programs to a file or the other stream (stdout). Thread-safe. The streams must outlive it.
class Console {
  public:
    Console(std::ostream& human, std::ostream& results, HumanStream kind, std::size_t columns = 80);

    /// One line (or several, cut at '\n') for people; a progress line standing there makes room.
    void line(std::string_view text);
    /// line() with "warning: " and "error: " before it.
    void warning(std::string_view text);
    void error(std::string_view text);
    /// Replaces the progress line, cut to the width of the terminal. Nothing on a plain stream:
    /// callers write an occasional line() there.
    void progress(std::string_view text);
    void clear_progress();
    [[nodiscard]] HumanStream human_stream() const noexcept { return kind_; }

    /// What was asked for as text (`--help`, samples), to the results stream, exactly as given.
    void result(std::string_view text);
    /// `json` and a line end to `destination`: "-" for the results stream, else a file, replaced
    /// as a whole (temporary file and rename). Throws std::system_error naming the path.
    void write_json(std::string_view json, const std::string& destination);

  private:
    void erase_progress_locked();

    std::mutex mutex_;
    std::ostream& human_;
    std::ostream& results_;
    HumanStream kind_;
    std::size_t columns_;
    bool progress_shown_ = false;
};

}  // namespace spillway::engine
