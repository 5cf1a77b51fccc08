// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/option_set.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cuda/byte_count.h"
#include "engine/cli/config_file.h"
#include "engine/cli/nearest.h"
#include "engine/cli/units.h"

namespace spillway::engine {
namespace {

constexpr std::string_view config_name = "config";
constexpr std::size_t help_column = 28;

template <typename Integer>
Integer parse_integer(const std::string& text) {
    Integer value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::result_out_of_range && stop == end)
        throw std::invalid_argument(fmt::format("\"{}\" is too large; the most is {}", text,
                                                std::numeric_limits<Integer>::max()));
    if (error != std::errc{} || stop != end || text.empty())
        throw std::invalid_argument(fmt::format("\"{}\" is no whole number from 0 to {}", text,
                                                std::numeric_limits<Integer>::max()));
    return value;
}

double parse_number(const std::string& text) {
    double value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end || text.empty() || !std::isfinite(value))
        throw std::invalid_argument("\"" + text + "\" is no finite number");
    return value;
}

template <typename Words>
std::string join_words(const Words& words, std::string_view separator) {
    std::string joined;
    for (const auto& word : words)
        joined += (joined.empty() ? "" : std::string(separator)) + std::string(word);
    return joined;
}

/// `text` cut at blanks into lines of at most `width` letters.
std::vector<std::string> wrap(std::string_view text, std::size_t width) {
    std::vector<std::string> lines;
    while (text.size() > width) {
        auto cut = text.rfind(' ', width);
        if (cut == std::string_view::npos)
            cut = std::min(text.find(' '), text.size());
        lines.emplace_back(text.substr(0, cut));
        text.remove_prefix(std::min(cut + 1, text.size()));
    }
    lines.emplace_back(text);
    return lines;
}

}  // namespace

std::string option_name_of_key(std::string_view key) {
    std::string name(key);
    std::replace(name.begin(), name.end(), '_', '-');
    return name;
}

std::string key_of_option_name(std::string_view name) {
    std::string key(name);
    std::replace(key.begin(), key.end(), '-', '_');
    return key;
}

OptionSet::OptionSet(std::string verb, std::string summary)
    : verb_(std::move(verb)), summary_(std::move(summary)) {}

void OptionSet::add(OptionSpec spec) {
    options_.push_back({.spec = std::move(spec), .value = {}});
}

void OptionSet::add(OptionSpec spec, std::string& into) {
    if (spec.default_text.empty())
        spec.default_text = into;
    spec.set = [&into](const std::string& text) { into = text; };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, std::filesystem::path& into) {
    if (spec.default_text.empty())
        spec.default_text = into.string();
    spec.set = [&into](const std::string& text) { into = text; };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, std::uint64_t& into) {
    if (spec.default_text.empty())
        spec.default_text = std::to_string(into);
    spec.kind = JsonKind::number;
    spec.set = [&into](const std::string& text) { into = parse_integer<std::uint64_t>(text); };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, std::uint32_t& into) {
    if (spec.default_text.empty())
        spec.default_text = std::to_string(into);
    spec.kind = JsonKind::number;
    spec.set = [&into](const std::string& text) { into = parse_integer<std::uint32_t>(text); };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, double& into) {
    if (spec.default_text.empty())
        spec.default_text = fmt::format("{}", into);
    spec.kind = JsonKind::number;
    spec.set = [&into](const std::string& text) { into = parse_number(text); };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, bool& into) {
    spec.value_name.clear();
    spec.kind = JsonKind::boolean;
    spec.set = [&into](const std::string& text) {
        if (text != "true" && text != "false")
            throw std::invalid_argument("\"" + text + "\" is neither true nor false");
        into = text == "true";
    };
    add(std::move(spec));
}

void OptionSet::add(OptionSpec spec, std::vector<std::string>& into) {
    if (spec.default_text.empty())
        spec.default_text = join_words(into, ",");
    spec.kind = JsonKind::list;
    spec.set = [&into](const std::string& text) { into = parse_list(text); };
    add(std::move(spec));
}

void OptionSet::add_bytes(OptionSpec spec, std::uint64_t& into) {
    if (spec.default_text.empty())
        spec.default_text = cuda::format_byte_count(into);
    spec.kind = JsonKind::number;
    spec.set = [&into](const std::string& text) { into = parse_size_bytes(text); };
    add(std::move(spec));
}

void OptionSet::add_choice(OptionSpec spec, std::vector<std::string> choices, std::string& into) {
    if (spec.default_text.empty())
        spec.default_text = into;
    if (spec.value_name.empty())
        spec.value_name = join_words(choices, "|");
    spec.set = [&into, choices = std::move(choices)](const std::string& text) {
        if (std::find(choices.begin(), choices.end(), text) == choices.end())
            throw std::invalid_argument(fmt::format("\"{}\" is not one of {}{}", text,
                                                    join_words(choices, ", "),
                                                    suggestion(text, choices, "")));
        into = text;
    };
    add(std::move(spec));
}

void OptionSet::add_positional(OptionSpec spec, std::string& into) {
    add(std::move(spec), into);
    options_.back().place = Place::positional;
}

void OptionSet::add_positional(OptionSpec spec, std::filesystem::path& into) {
    add(std::move(spec), into);
    options_.back().place = Place::positional;
}

void OptionSet::refuse(std::string name) {
    refused_.push_back(std::move(name));
}

const OptionSet::Option& OptionSet::find(std::string_view name) const {
    const auto found = std::find_if(options_.begin(), options_.end(),
                                    [&](const Option& option) { return option.spec.name == name; });
    if (found == options_.end())
        throw std::logic_error("no option of this name was added: " + std::string(name));
    return *found;
}

OptionSet::Option& OptionSet::find(std::string_view name) {
    return const_cast<Option&>(std::as_const(*this).find(name));
}

ValueSource OptionSet::source(std::string_view name) const {
    return find(name).source;
}

std::vector<std::string> OptionSet::names() const {
    std::vector<std::string> all;
    for (const auto& option : options_)
        all.push_back(option.spec.name);
    all.emplace_back(config_name);
    all.emplace_back("help");
    return all;
}

bool OptionSet::is_refused(std::string_view name) const {
    return std::find(refused_.begin(), refused_.end(), name) != refused_.end();
}

void OptionSet::report_unknown(std::string_view name, std::string_view shown,
                               std::vector<std::string>& problems) const {
    if (is_refused(name))
        problems.push_back(fmt::format("{} is not available in this version", shown));
    else
        problems.push_back(fmt::format("{} is not an option of {}{}", shown, verb_,
                                       suggestion(name, names(), "--")));
}

void OptionSet::report_leftovers(const std::vector<std::string>& words,
                                 std::vector<std::string>& problems) const {
    bool value_expected = false;
    for (const auto& word : words) {
        if (word.size() > 1 && word.starts_with('-')) {
            const auto flag = word.substr(0, word.find('='));
            report_unknown(flag.substr(flag.starts_with("--") ? 2 : 1), flag, problems);
            value_expected = flag.size() == word.size();
        } else if (!std::exchange(value_expected, false)) {
            problems.push_back(fmt::format("\"{}\" belongs to no option", word));
        }
    }
}

std::string OptionSet::read_flags(std::span<const std::string> arguments, Outcome& outcome,
                                  std::vector<std::string>& problems) {
    CLI::App app;
    app.set_help_flag();
    app.allow_extras();
    auto* help = app.add_flag("--help,-h");
    std::map<std::string, CLI::Option*> handles;
    const auto declare = [&](const OptionSpec& spec, const std::string& flags) {
        auto*& handle = handles[spec.name];
        if (spec.kind == JsonKind::boolean) {
            handle = app.add_flag(flags)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
            return;
        }
        handle = app.add_option(flags, [](const CLI::results_t&) { return true; })
                     ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                     ->type_name(spec.value_name);
        if (spec.kind == JsonKind::list)
            handle->expected(-1);
    };
    declare({.name = std::string(config_name), .value_name = "FILE.json"}, "--config");
    for (const auto& [spec, place, source, value] : options_)
        declare(spec, (place == Place::positional ? spec.name + "," : "") + "--" + spec.name);
    try {
        // CLI11 takes a vector from its back.
        app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    } catch (const CLI::ParseError& error) {
        problems.emplace_back(error.what());
    }
    report_leftovers(app.remaining(), problems);
    outcome = help->count() > 0 ? Outcome::help_wanted : Outcome::run;
    for (auto& option : options_) {
        const auto& given = handles[option.spec.name]->results();
        if (given.empty())
            continue;
        if (given.size() > 1 && option.spec.kind != JsonKind::list)
            problems.push_back(fmt::format("--{} is given {} times ({}); give it once",
                                           option.spec.name, given.size(),
                                           join_words(given, ", ")));
        for (const auto& text : given) {
            if (text.starts_with("--"))
                problems.push_back(
                    fmt::format("--{} needs a value; found the option {}", option.spec.name, text));
        }
        option.source = ValueSource::flag;
        option.value = option.spec.kind == JsonKind::list ? join_words(given, ",") : given.back();
    }
    const auto& config = handles[std::string(config_name)]->results();
    return config.empty() ? "" : config.back();
}

void OptionSet::read_file(const std::string& path, std::vector<std::string>& problems) {
    std::map<std::string, std::string> keys;
    for (const auto& [key, value] : read_config_file(path, problems)) {
        const auto name = option_name_of_key(key);
        const auto option = std::find_if(options_.begin(), options_.end(),
                                         [&](const Option& o) { return o.spec.name == name; });
        if (option == options_.end()) {
            report_unknown(name, fmt::format("--config {}: \"{}\"", path, key), problems);
            continue;
        }
        if (const auto [former, fresh] = keys.emplace(name, key); !fresh)
            problems.push_back(fmt::format("--config {}: \"{}\" and \"{}\" are one option", path,
                                           former->second, key));
        if (option->source == ValueSource::flag)
            continue;
        option->source = ValueSource::file;
        option->value = value;
    }
}

void OptionSet::apply(std::vector<std::string>& problems) {
    for (const auto& option : options_) {
        if (option.source == ValueSource::default_value)
            continue;
        try {
            option.spec.set(option.value);
        } catch (const std::invalid_argument& error) {
            const auto* from = option.source == ValueSource::file ? " (in the --config file)" : "";
            problems.push_back(fmt::format("--{}{}: {}", option.spec.name, from, error.what()));
        }
    }
}

OptionSet::Outcome OptionSet::parse(std::span<const std::string> arguments) {
    std::vector<std::string> problems;
    auto outcome = Outcome::run;
    const auto config = read_flags(arguments, outcome, problems);
    if (outcome == Outcome::help_wanted)
        return outcome;
    if (!config.empty())
        read_file(config, problems);
    apply(problems);
    if (!problems.empty())
        throw UsageError(std::move(problems));
    return outcome;
}

std::string OptionSet::help() const {
    std::string positionals;
    for (const auto& option : options_) {
        if (option.place == Place::positional)
            positionals += " " + option.spec.value_name;
    }
    auto text = fmt::format("spillway {}{} [--config FILE.json] [options]\n{}\n\noptions:\n", verb_,
                            positionals, summary_);
    const auto describe = [&](const std::string& flag, const std::string& help) {
        text += fmt::format("  {:<{}}", flag, help_column - 2);
        const bool fits = flag.size() + 3 <= help_column;
        const auto indent = "\n" + std::string(help_column, ' ');
        text += (fits ? "" : indent) + join_words(wrap(help, 100 - help_column), indent) + "\n";
    };
    for (const auto& [spec, place, source, value] : options_) {
        const auto flag = "--" + spec.name + (spec.value_name.empty() ? "" : " " + spec.value_name);
        const auto shown = spec.kind == JsonKind::boolean && spec.default_text.empty()
                               ? std::string("off")
                               : spec.default_text;
        describe(flag, spec.help + (shown.empty() ? "" : " (default: " + shown + ")"));
    }
    describe("--config FILE.json", "options from a JSON object; flags override it");
    describe("--help", "this text");
    return text;
}

}  // namespace spillway::engine
