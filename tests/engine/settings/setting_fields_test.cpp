// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/setting_fields.h"

#include <set>
#include <stdexcept>

#include <catch2/catch.hpp>

using namespace spillway::engine;
using Catch::Matchers::Contains;

namespace {

const SettingField& field(const std::string& name) {
    for (const auto& candidate : setting_fields()) {
        if (candidate.name == name)
            return candidate;
    }
    throw std::logic_error("no field " + name);
}

std::vector<std::string> problems_of_flags(const std::vector<std::string>& arguments) {
    TrainSettings settings;
    OptionSet options("train", "Trains.");
    declare_settings(options, settings);
    try {
        static_cast<void>(options.parse(arguments));
    } catch (const UsageError& error) {
        return error.problems();
    }
    return {};
}

}  // namespace

TEST_CASE(
    "setting_fields: every field has one name, a help text, and a default that reads back as "
    "itself") {
    std::set<std::string> names;
    for (const auto& f : setting_fields()) {
        INFO(f.name);
        CHECK(names.insert(f.name).second);
        CHECK_FALSE(f.help.empty());
        TrainSettings settings;
        const auto text = f.read(settings);
        if (text.empty())
            continue;
        f.write(settings, text);
        CHECK(f.read(settings) == text);
    }
}

TEST_CASE("setting_fields: fields write the member they name") {
    TrainSettings s;
    field("host-mem").write(s, "8GiB");
    field("clip").write(s, "off");
    field("budget").write(s, "2h");
    field("data").write(s, "a,b");
    field("beta2").write(s, "0.999");
    field("weight-decay").write(s, "0.01");
    CHECK(s.host_mem == std::uint64_t{8} << 30);
    CHECK(s.clip.kind == ClipKind::off);
    CHECK(s.budget_s == 7200);
    CHECK(s.data == std::vector<std::string>{"a", "b"});
    CHECK(s.beta2 == 0.999);
    CHECK(s.weight_decay == 0.01);
    field("clip").write(s, "0.5");
    CHECK(s.clip == Clip{ClipKind::norm, 0.5});
}

TEST_CASE("setting_fields: what changes the result is fixed by the run, what places it is not") {
    for (const auto* name :
         {"model",  "vocab",  "context",        "ffn",     "data",         "seed",
          "batch",  "seq",    "state",          "compute", "grad",         "optimizer",
          "lr",     "beta1",  "beta2",          "epsilon", "weight-decay", "schedule",
          "warmup", "min-lr", "schedule-steps", "clip",    "nonfinite"}) {
        INFO(name);
        CHECK(field(name).scope == SettingScope::run);
    }
    for (const auto* name :
         {"device", "device-mem", "host-mem", "nvme", "micro-batches", "recompute", "chunk-size",
          "threads", "isa", "io-backend", "commit-every", "update-window", "weight-window",
          "io-block", "io-depth", "update-threads", "tune"}) {
        INFO(name);
        CHECK(field(name).scope == SettingScope::placement);
    }
    CHECK(field("steps").scope == SettingScope::length);
    CHECK(field("budget").scope == SettingScope::length);
}

TEST_CASE("setting_fields: what cannot be is refused by name") {
    const auto [arguments, said] = GENERATE(table<std::vector<std::string>, std::string>({
        {{"--state", "fp8"}, "\"fp8\" is not one of fp32, bf16, int8"},
        {{"--compute", "bf16"}, "bf16 is not available"},
        {{"--grad", "bf16"}, "bf16 is not available"},
        {{"--optimizer", "muon"}, "muon is not available in this version; it takes adamw"},
        {{"--nvme", "/a,/b,/a"}, "/a is given twice"},
        {{"--model", "llama:1x64x1"}, "llama models are not available"},
        {{"--trace", "/tmp"}, "it is a folder"},
        {{"--trace", "/dev/null"}, "it is not a file"},
        {{"--trace", "/nowhere/t.json"}, "is not there; make it first"},
        {{"--tbw", "600"}, "--tbw is not available"},
        {{"--tune", "0s"}, "neither auto, off, nor a time above 0"},
        {{"--tune", "always"}, "always"},
        {{"--device", "cuda:1023"}, "\"cuda:1023\": "},
    }));
    const auto found = problems_of_flags(arguments);
    REQUIRE(found.size() == 1);
    CHECK_THAT(found.front(), Contains(said));
}

TEST_CASE("setting_fields: a choice that does not exist is told apart from one to come") {
    const auto found = problems_of_flags({"--optimizer", "adamx", "--isa", "avx9"});
    REQUIRE(found.size() == 2);
    CHECK_THAT(found[0], Contains("\"adamx\" is not one of adamw, adam, sgd"));
    CHECK_THAT(found[0], Contains("did you mean adamw?"));
    CHECK_THAT(found[1], Contains("avx9"));
}
