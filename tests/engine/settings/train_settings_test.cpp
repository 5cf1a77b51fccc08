// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/settings/train_settings.h"

#include <algorithm>
#include <stdexcept>

#include <catch2/catch.hpp>

using namespace spillway::engine;
using Catch::Matchers::Contains;

namespace {

TrainSettings sound() {
    TrainSettings settings;
    settings.model = "gpt2:2x64x2";
    settings.data = {"a.txt"};
    settings.out = "out";
    settings.steps = 10;
    return settings;
}

std::string only_problem(const TrainSettings& settings) {
    const auto problems = problems_of(settings);
    REQUIRE(problems.size() == 1);
    return problems.front();
}

}  // namespace

TEST_CASE("train_settings: defaults with a model, data, a folder and a length are sound") {
    CHECK(problems_of(sound()).empty());
}

TEST_CASE("train_settings: all that is missing is named at once") {
    const auto problems = problems_of({});
    REQUIRE(problems.size() == 4);
    CHECK_THAT(problems[0], Contains("--model"));
    CHECK_THAT(problems[1], Contains("--data"));
    CHECK_THAT(problems[2], Contains("--out"));
    CHECK_THAT(problems[3], Contains("--steps") && Contains("--budget"));
}

TEST_CASE("train_settings: contradictions and values out of range name option and value") {
    auto s = sound();
    std::string said;
    SECTION("two lengths") {
        s.budget_s = 60, said = "exclude each other";
    }
    SECTION("a log's length") {
        s.replay_progress = "m.jsonl", said = "--replay-progress m.jsonl";
    }
    SECTION("a schedule without steps") {
        s.steps = 0, s.budget_s = 60, s.schedule_steps = 5, said = "--schedule-steps 5";
    }
    SECTION("no model") {
        s.model = "gpt2:2x65x2", said = "--model";
    }
    SECTION("an unknown family") {
        s.model = "gpt9:1x1x1", said = "gpt9";
    }
    SECTION("no sequences") {
        s.batch = 0, said = "--batch is 0";
    }
    SECTION("bytes without tokens") {
        s.vocab = 255, said = "--vocab is 255";
    }
    SECTION("too long a sequence") {
        s.seq = 2000, said = "--seq 2000";
    }
    SECTION("a longer sequence than a GPU's attention takes") {
        s.device = "cuda:0", s.context = 8192, s.seq = 6145;
        said = "--seq 6145: attention on --device cuda:0 takes sequences of up to 6144 tokens";
    }
    SECTION("a context that a GPU's attention does not take") {
        s.device = "cuda:0", s.context = 8192, said = "--seq 8192 (the context)";
    }
    SECTION("parts that do not divide") {
        s.micro_batches = 3, said = "--micro-batches 3";
    }
    SECTION("more parts than sequences") {
        s.micro_batches = 16, said = "--micro-batches 16";
    }
    SECTION("a negative rate") {
        s.lr = -1, said = "--lr is -1";
    }
    SECTION("a moment that never moves") {
        s.beta2 = 1, said = "--beta2 is 1";
    }
    SECTION("a clip of nothing") {
        s.clip.most = 0, said = "--clip is 0";
    }
    SECTION("a clip of less than nothing") {
        s.clip = {ClipKind::value, -1}, said = "--clip is value:-1; it must be above 0, or off";
    }
    SECTION("a trust that goes the wrong way") {
        s.trust_coefficient = -1, said = "--trust-coefficient is -1";
    }
    SECTION("a second moment that forgets ever more") {
        s.beta2_decay = 0.5, said = "--beta2-decay is 0.5; it must be from -1e30 to 0";
    }
    SECTION("an update that is clipped to less than its usual length") {
        s.update_clip = 0.5, said = "--update-clip is 0.5; it must be from 1 to 1e30";
    }
    SECTION("factors that would be rounded") {
        s.optimizer = "adafactor", s.state = "int8";
        said = "--state is int8; adafactor keeps few values";
    }
    SECTION("a rising end") {
        s.min_lr = 2, said = "--min-lr is 2";
    }
    SECTION("a ragged chunk") {
        s.tuning.chunk_bytes = 100000, said = "--chunk-size is 100000";
    }
    SECTION("a ragged block") {
        s.tuning.io_block_bytes = 5000, said = "--io-block is 5000 bytes; it must be a multiple of";
    }
    SECTION("a window beyond all use") {
        s.tuning.weight_window = 65, said = "--weight-window is 65; the most is 64";
    }
    SECTION("the most sequences there are") {
        s.batch = 4294967295, said = "--batch is 4294967295; the most is 1048576";
    }
    SECTION("more tokens than can be numbered") {
        s.batch = 1 << 20, s.context = 1 << 12, said = "tokens a step; the most is 2147483647";
    }
    SECTION("more activations than can be counted") {
        s.model = "gpt2:10000x1024x16", s.context = 1 << 20, s.batch = 1000;
        said = "than can be planned for";
    }
    SECTION("too many threads") {
        s.threads = 257, said = "--threads is 257; the most is 256";
    }
    SECTION("evaluations without end") {
        s.eval_sequences = 4294967295, said = "--eval-sequences is 4294967295";
    }
    SECTION("a chunk beyond memory") {
        s.tuning.chunk_bytes = std::uint64_t{1} << 63, said = "--chunk-size is 9223372036854775808";
    }
    SECTION("a rate beyond the range") {
        s.lr = 1e31, said = "from 0 to 1e30";
    }
    SECTION("a long warmup") {
        s.warmup = 9, s.schedule_steps = 8, said = "--warmup 9";
    }
    CHECK_THAT(only_problem(s), Contains(said));
}

TEST_CASE("train_settings: sequences as long as a device's attention takes are sound") {
    auto s = sound();
    s.context = 8192;
    CHECK(problems_of(s).empty());
    s.device = "cuda:0", s.seq = 6144;
    CHECK(problems_of(s).empty());
}

TEST_CASE("train_settings: commits come by steps or by time") {
    CHECK(parse_commit_interval("500").steps == 500);
    CHECK(parse_commit_interval("500").seconds == 0);
    CHECK(parse_commit_interval("10m").seconds == 600);
    CHECK(parse_commit_interval("10m").steps == 0);
    for (const auto* wrong : {"", "0", "-5", "5x", "0s", "99999999999999999999"})
        CHECK_THROWS_AS(parse_commit_interval(wrong), std::invalid_argument);
}
