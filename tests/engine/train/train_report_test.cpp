// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/train_report.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace spillway::engine;
using Catch::Matchers::Contains;
using Json = nlohmann::json;

namespace {

TrainResult result() {
    TrainResult r;
    r.settings.model = "gpt2:2x64x2";
    r.parameters = 1000;
    r.progress = {
        .iteration = 10, .tokens = 640, .skipped_steps = 1, .first_loss = 5.5, .last_loss = 2.25};
    r.wall_s = 2;
    r.tokens_per_s = 320;
    r.updates = 9;
    r.plan.activation_bytes = 4000;
    r.weights_xxh3 = 0xABC;
    r.offload.commit_bytes = 77;
    r.peak.rss_bytes = 123;
    return r;
}

}  // namespace

TEST_CASE("train_report: the JSON has every field that is promised") {
    const auto json = Json::parse(train_report_json(result()));
    for (const auto* pointer : {"/model/parameters",
                                "/device",
                                "/steps",
                                "/tokens",
                                "/wall_s",
                                "/tokens_per_s",
                                "/loss/first",
                                "/loss/last",
                                "/loss/eval",
                                "/phase_s/forward",
                                "/phase_s/backward",
                                "/phase_s/optimizer",
                                "/phase_s/commit",
                                "/stall_s/nvme_read",
                                "/stall_s/nvme_write",
                                "/stall_s/link",
                                "/stall_s/cpu",
                                "/stall_s/commit",
                                "/commit/commits",
                                "/commit/bytes_per_commit",
                                "/commit/wall_s",
                                "/commit/write_s",
                                "/commit/flush_s",
                                "/commit/exposed_s",
                                "/commit/hidden_s",
                                "/bytes/nvme_read",
                                "/bytes/nvme_written",
                                "/bytes/commit",
                                "/bytes/h2d",
                                "/bytes/d2h",
                                "/peak/device_bytes",
                                "/peak/host_bytes",
                                "/peak/overhead_bytes",
                                "/peak/rss_bytes",
                                "/bound_s",
                                "/bound_by",
                                "/attained",
                                "/exact",
                                "/updates",
                                "/skipped_steps",
                                "/resumed_from_step",
                                "/weights_xxh3",
                                "/settings/lr"}) {
        INFO(pointer);
        CHECK(json.contains(Json::json_pointer(pointer)));
    }
    CHECK(json["steps"] == 10);
    CHECK(json["loss"]["last"] == 2.25);
    CHECK(json["loss"]["eval"].is_null());
    CHECK(json["bytes"]["commit"] == 77);
    CHECK(json["weights_xxh3"] == "0000000000000abc");
    CHECK(json["attained"].is_null());
    CHECK(json["bound_by"].is_null());
    CHECK(json["resumed_from_step"].is_null());
}

TEST_CASE("train_report: people read what was used, what it would have taken, and the speed") {
    auto r = result();
    CHECK(bytes_without_offloading(r.plan, r.parameters) == 4000 + 16000);
    r.bound = StepBound{.seconds = 0.1, .by = "nvme"};
    r.attained = 0.5;
    r.evaluation_loss = 2.5;
    std::string text;
    for (const auto& line : train_report_lines(r))
        text += line + "\n";
    CHECK_THAT(
        text, Contains("19.53 KiB") && Contains("10 steps, 640 tokens, 9 updates, 1 skipped") &&
                  Contains("loss 5.5000 at first, 2.2500 at last, 2.5000 on held-out text") &&
                  Contains("50 % of what the nvme allows") && Contains("weights 0000000000000abc"));
}

TEST_CASE("train_report: what commits cost is what they took between two moments") {
    spillway::offload::OffloadStatistics before;
    before.commits = 1;
    before.commit_bytes = 5000;
    before.commit_wall_s = before.commit_write_s = 1;
    auto after = before;
    after.commits = 5;
    after.commit_bytes = 5000 + 4 * 2048;
    after.commit_wall_s = 9;
    after.commit_write_s = 6;
    after.commit_flush_s = 3;
    after.stall.commit = 2;
    auto r = result();
    r.commit = commit_cost(before, after);
    const auto json = Json::parse(train_report_json(r)).at("commit");
    CHECK(json.at("commits") == 4);
    CHECK(json.at("bytes_per_commit") == 2048);
    CHECK(json.at("wall_s") == 8);
    CHECK(json.at("write_s") == 5);
    CHECK(json.at("flush_s") == 3);
    CHECK(json.at("exposed_s") == 2);
    CHECK(json.at("hidden_s") == 6);
    std::string text;
    for (const auto& line : train_report_lines(r))
        text += line + "\n";
    CHECK_THAT(text, Contains("4 commits: 2.00 KiB written and 2.00 s each, 2.00 s of the run "
                              "waited for them"));
}

TEST_CASE("train_report: bytes are short for people") {
    CHECK(human_bytes(0) == "0 B");
    CHECK(human_bytes(1023) == "1023 B");
    CHECK(human_bytes(1536) == "1.50 KiB");
    CHECK(human_bytes(std::uint64_t{3} << 40) == "3.00 TiB");
}
