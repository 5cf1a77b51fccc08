// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cli/usage_error.h"

namespace spillway::engine {

/// Where an option's value came from; flags override the file, the file overrides defaults.
enum class ValueSource { default_value, file, flag };

/// How a value stands in JSON.
enum class JsonKind { text, number, boolean, list };

/// One option of a verb. Every value is a text; `set` checks and takes it.
struct OptionSpec {
    std::string name;          ///< "host-mem": the flag without "--" and the key of the file
    std::string value_name{};  ///< "BYTES", shown by --help; "" for a switch
    std::string help{};        ///< one sentence, small first letter, no full stop
    std::string
        default_text{};  ///< what --help shows; a value, or words ("free memory minus a margin")
    JsonKind kind = JsonKind::text;
    /// Called once, after all is read, if the option was given. A list arrives joined by commas,
    /// a switch as "true" or "false". Throws std::invalid_argument saying what is wrong with the
    /// value; the option's name is put before it.
    std::function<void(const std::string&)> set{};
};

/// The options of one verb: flags, a `--config FILE.json` of the same names, defaults, help, and
/// errors that name the nearest option. Not thread-safe.
///
///     OptionSet options("inspect", "lists a state folder and verifies every checksum");
///     options.add_positional({"out", "DIR", "the run's folder", ""}, folder);
///     options.add({"json", "FILE|-", "where the result goes as JSON", ""}, json);
///     if (options.parse(arguments) == OptionSet::Outcome::help_wanted) {
///         console.result(options.help());
///         return as_int(ExitCode::done);
///     }
///     if (!options.given("out")) throw UsageError("inspect needs the run's folder: ...");
class OptionSet {
  public:
    OptionSet(std::string verb, std::string summary);

    void add(OptionSpec spec);
    /// Binds a variable, whose present value is the default shown (unless `default_text` is set).
    void add(OptionSpec spec, std::string& into);
    void add(OptionSpec spec, std::filesystem::path& into);
    void add(OptionSpec spec, std::uint64_t& into);
    void add(OptionSpec spec, std::uint32_t& into);
    void add(OptionSpec spec, double& into);
    void add(OptionSpec spec, bool& into);                      ///< a switch
    void add(OptionSpec spec, std::vector<std::string>& into);  ///< a list
    /// A size in bytes: "8GiB", "64MB", "4096".
    void add_bytes(OptionSpec spec, std::uint64_t& into);
    /// One of `choices`; any other value is refused, suggesting the nearest.
    void add_choice(OptionSpec spec, std::vector<std::string> choices, std::string& into);
    /// The next argument without a flag; also accepted as `--name`.
    void add_positional(OptionSpec spec, std::string& into);
    void add_positional(OptionSpec spec, std::filesystem::path& into);
    /// A name that is known but still to come: using it is refused by name.
    void refuse(std::string name);

    enum class Outcome { run, help_wanted };
    /// Reads flags and file and sets what was given. Throws UsageError with every problem found.
    [[nodiscard]] Outcome parse(std::span<const std::string> arguments);

    [[nodiscard]] std::string help() const;
    [[nodiscard]] ValueSource source(std::string_view name) const;
    [[nodiscard]] bool given(std::string_view name) const {
        return source(name) != ValueSource::default_value;
    }

  private:
    enum class Place { flag, positional };
    struct Option {
        OptionSpec spec;
        Place place = Place::flag;
        ValueSource source = ValueSource::default_value;
        std::string value;
    };

    Option& find(std::string_view name);
    [[nodiscard]] const Option& find(std::string_view name) const;
    [[nodiscard]] std::vector<std::string> names() const;
    [[nodiscard]] bool is_refused(std::string_view name) const;
    void report_unknown(std::string_view name, std::string_view shown,
                        std::vector<std::string>& problems) const;
    /// Returns --config's value, "" if not given.
    std::string read_flags(std::span<const std::string> arguments, Outcome& outcome,
                           std::vector<std::string>& problems);
    void report_leftovers(const std::vector<std::string>& words,
                          std::vector<std::string>& problems) const;
    void read_file(const std::string& path, std::vector<std::string>& problems);
    void apply(std::vector<std::string>& problems);

    std::string verb_;
    std::string summary_;
    std::vector<Option> options_;
    std::vector<std::string> refused_;
};

/// The text a key of the configuration file has on the command line: "host_mem" -> "host-mem".
[[nodiscard]] std::string option_name_of_key(std::string_view key);
/// The key of an option in JSON that this program writes: "host-mem" -> "host_mem".
[[nodiscard]] std::string key_of_option_name(std::string_view name);

}  // namespace spillway::engine
