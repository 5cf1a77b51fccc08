// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/run_record.h"

#include <set>
#include <stdexcept>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/settings/setting_fields.h"

using namespace spillway::engine;
using Catch::Matchers::Contains;

namespace {

TrainSettings started() {
    TrainSettings s;
    s.model = "gpt2:2x64x2";
    s.data = {"a.txt", "b.txt"};
    s.lr = 1e-8;  // a text with an exponent
    s.clip.kind = ClipKind::off;
    s.steps = 100;
    s.schedule_steps = 100;
    s.host_mem = 1000;
    s.threads = 7;
    return s;
}

GivenSettings these(std::set<std::string, std::less<>> names) {
    return [names](std::string_view name) { return names.contains(name); };
}

}  // namespace

TEST_CASE("run_record: a resume takes the run's settings and its length, but no placement") {
    TrainSettings resumed;
    CHECK(adopt_run_record(resumed, make_run_record(started(), "f", "Haswell"), these({})).empty());
    CHECK(resumed.model == "gpt2:2x64x2");
    CHECK(resumed.data == std::vector<std::string>{"a.txt", "b.txt"});
    CHECK(resumed.lr == 1e-8);
    CHECK(resumed.clip.kind == ClipKind::off);
    CHECK(resumed.steps == 100);
    CHECK(resumed.schedule_steps == 100);
    CHECK(resumed.host_mem == 0);
    CHECK(resumed.threads == 0);
}

TEST_CASE("run_record: every setting fixed by the run is refused by name when it changes") {
    const auto record = make_run_record(started(), "f", "Haswell");
    for (const auto& field : setting_fields()) {
        if (field.scope != SettingScope::run || field.name == "data")
            continue;
        INFO(field.name);
        TrainSettings changed = started();
        // Any value that the field takes and that differs.
        bool differs = false;
        for (const auto* value : {"3", "0.5", "gpt2:1x32x1", "linear", "stop", "off", "bf16"}) {
            try {
                field.write(changed, value);
            } catch (const std::invalid_argument&) {
                continue;
            }
            differs = field.read(changed) != field.read(started());
            if (differs)
                break;
        }
        if (!differs)
            continue;  // one choice only: nothing to change it to
        const auto problems = adopt_run_record(changed, record, these({field.name}));
        REQUIRE(problems.size() == 1);
        CHECK_THAT(problems.front(), Contains("--" + field.name) && Contains(field.read(changed)) &&
                                         Contains(field.read(started())));
    }
}

TEST_CASE("run_record: giving the run's own value, in another spelling, is no change") {
    auto same = started();
    same.lr = 0.00000001;
    CHECK(adopt_run_record(same, make_run_record(started(), "f", "Haswell"),
                           these({"lr", "clip", "batch"}))
              .empty());
}

TEST_CASE("run_record: several changed settings are listed at once") {
    auto changed = started();
    changed.seed = 9;
    changed.batch = 16;
    CHECK(adopt_run_record(changed, make_run_record(started(), "f", "Haswell"),
                           these({"seed", "batch"}))
              .size() == 2);
}

TEST_CASE("run_record: length may change, the kind of clock may not") {
    auto longer = started();
    longer.steps = 500;
    CHECK(adopt_run_record(longer, make_run_record(started(), "f", "Haswell"), these({"steps"}))
              .empty());
    CHECK(longer.steps == 500);
    CHECK(longer.schedule_steps == 100);

    TrainSettings timed;
    timed.budget_s = 60;
    const auto problems =
        adopt_run_record(timed, make_run_record(started(), "f", "Haswell"), these({"budget"}));
    REQUIRE(problems.size() == 1);
    CHECK_THAT(problems.front(), Contains("--budget") && Contains("--steps"));

    auto by_clock = started();
    by_clock.steps = 0;
    by_clock.schedule_steps = 0;
    by_clock.budget_s = 60;
    TrainSettings more;
    more.budget_s = 90;
    CHECK(adopt_run_record(more, make_run_record(by_clock, "f", "Haswell"), these({"budget"}))
              .empty());
    CHECK(more.budget_s == 90);
    TrainSettings counted;
    counted.steps = 5;
    CHECK(adopt_run_record(counted, make_run_record(by_clock, "f", "Haswell"), these({"steps"}))
              .size() == 1);
}

TEST_CASE("run_record: the data may move but not change") {
    auto moved = started();
    moved.data = {"/elsewhere/a.txt", "/elsewhere/b.txt"};
    const auto record = make_run_record(started(), "0123", "Haswell");
    CHECK(adopt_run_record(moved, record, these({"data"})).empty());
    CHECK(moved.data.front() == "/elsewhere/a.txt");
    CHECK(data_problem(record, "0123").empty());
    CHECK_THAT(data_problem(record, "4567"), Contains("0123") && Contains("4567"));
}

TEST_CASE("run_record: other kernels than the run's are told, and not refused") {
    const auto record = make_run_record(started(), "f", "Haswell");
    CHECK(kernels_warning(record, "Haswell").empty());
    CHECK_THAT(kernels_warning(record, "SkylakeX"), Contains("for Haswell") &&
                                                        Contains("for SkylakeX") &&
                                                        Contains("OPENBLAS_CORETYPE=Haswell"));
    CHECK(kernels_warning("{}", "SkylakeX").empty());  // of an earlier version
    TrainSettings resumed;
    CHECK(adopt_run_record(resumed, record, these({})).empty());
}

TEST_CASE("run_record: a record that cannot be read is an error, not a default") {
    TrainSettings settings;
    CHECK_THROWS_AS(adopt_run_record(settings, "{", these({})), std::runtime_error);
    CHECK_THROWS_AS(adopt_run_record(settings, "[]", these({})), std::runtime_error);
}

TEST_CASE(
    "run_record: settings as JSON hold every field, typed, and serve as a configuration file") {
    const auto json = nlohmann::json::parse(settings_json(started()));
    CHECK(json.size() == setting_fields().size());
    CHECK(json.at("steps") == 100);
    CHECK(json.at("lr") == 1e-8);
    CHECK(json.at("clip") == "off");
    CHECK(json.at("resume") == false);
    CHECK(json.at("data") == nlohmann::json({"a.txt", "b.txt"}));
    CHECK(json.at("weight_decay") == 0.1);
    for (const auto& [key, value] : json.items())
        CHECK(key_of_option_name(option_name_of_key(key)) == key);
}
