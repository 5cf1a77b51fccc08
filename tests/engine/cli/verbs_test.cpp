// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "cpu_optim/split_master.h"
#include "engine/cli/usage_error.h"
#include "engine/cli/verbs/clean.h"
#include "engine/cli/verbs/export.h"
#include "engine/cli/verbs/generate.h"
#include "engine/cli/verbs/info.h"
#include "engine/cli/verbs/inspect.h"
#include "engine/cli/verbs/train.h"
#include "engine/interop/huggingface_gpt2.h"
#include "offload/offload_engine.h"
#include "offload/plan.h"
#include "offload/state_reader.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;
using RunVerb = int (*)(std::span<const std::string>, Console&);

struct Outcome {
    int code = 0;
    std::string human;
    std::string result;
};

Outcome call(RunVerb verb, const std::vector<std::string>& arguments) {
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    const int code = verb(arguments, console);
    return {code, human.str(), result.str()};
}

/// A run of two steps of a small model.
struct SmallRun {
    testing::TemporaryFolder folder;
    fs::path out = folder.path() / "run";
    fs::path nvme = folder.path() / "nvme";

    SmallRun() {
        fs::create_directory(nvme);
        std::ofstream text(folder.path() / "text.txt");
        for (int i = 0; i < 400; ++i)
            text << "line " << i << " of what is to be learnt\n";
        text.close();
        const auto trained = call(run_train, {"--model",
                                              "gpt2:2x32x2",
                                              "--context",
                                              "24",
                                              "--data",
                                              (folder.path() / "text.txt").string(),
                                              "--batch",
                                              "2",
                                              "--steps",
                                              "2",
                                              "--eval-sequences",
                                              "0",
                                              "--probe",
                                              "off",
                                              "--host-mem",
                                              "64MiB",
                                              "--threads",
                                              "2",
                                              "--nvme",
                                              nvme.string(),
                                              "--out",
                                              out.string()});
        REQUIRE(trained.code == 0);
    }
};

std::vector<float> masters_of(const fs::path& out, offload::TensorId tensor) {
    offload::StateReader reader(out, nvme::BackendKind::threads);
    std::vector<float> masters(reader.order().tensors()[tensor].elements());
    reader.visit_tensor(tensor,
                        [&](offload::TensorId, std::uint64_t first, std::span<const float> values) {
                            std::copy(values.begin(), values.end(),
                                      masters.begin() + static_cast<std::ptrdiff_t>(first));
                        });
    return masters;
}

/// Flips a bit in every block, so that whichever copies the commit names are hit.
void damage(const fs::path& extents) {
    std::fstream file(extents, std::ios::binary | std::ios::in | std::ios::out);
    const auto bytes = fs::file_size(extents);
    for (std::uint64_t at = 100; at < bytes; at += 4096) {
        file.seekg(static_cast<std::streamoff>(at));
        const auto flipped = static_cast<char>(file.get() ^ 4);
        file.seekp(static_cast<std::streamoff>(at));
        file.put(flipped);
    }
    file.close();
    REQUIRE(file);
}

}  // namespace

TEST_CASE("verbs: export gives the masters, or the working weights, of the last commit") {
    const SmallRun run;
    const auto fp32 = run.folder.path() / "fp32";
    const auto bf16 = run.folder.path() / "bf16";
    const auto exported = call(run_export, {run.out.string(), fp32.string(), "--json", "-"});
    CHECK(exported.code == 0);
    CHECK(nlohmann::json::parse(exported.result)["iteration"] == 2);
    CHECK(call(run_export, {run.out.string(), bf16.string(), "--dtype", "bf16"}).code == 0);
    const HuggingfaceGpt2 full(fp32);
    const HuggingfaceGpt2 half(bf16);
    for (offload::TensorId tensor = 0; tensor < full.tensors().size(); ++tensor) {
        INFO(full.tensors()[tensor].name);
        const auto masters = masters_of(run.out, tensor);
        std::vector<float> stored(masters.size());
        full.read_tensor(tensor, stored);
        CHECK(std::memcmp(stored.data(), masters.data(), masters.size() * sizeof(float)) == 0);
        half.read_tensor(tensor, stored);
        bool equal = true;
        for (std::size_t i = 0; i < masters.size(); ++i)
            equal = equal && std::bit_cast<std::uint32_t>(stored[i]) >> 16 ==
                                 cpu_optim::split(masters[i]).hi;
        CHECK(equal);
    }
    CHECK_THROWS_AS(call(run_export, {run.out.string(), fp32.string()}), UsageError);
    CHECK_THROWS_AS(call(run_export, {run.out.string()}), UsageError);
    CHECK_THROWS_WITH(call(run_export, {run.out.string(), "new", "--optimizer-state"}),
                      Contains("optimizer-state"));
    CHECK_THROWS_AS(call(run_export, {(run.folder.path() / "absent").string(), "new"}),
                    offload::FolderRefused);
    CHECK_FALSE(fs::exists("new"));
}

TEST_CASE("verbs: generate writes the same from a run and from its export") {
    const SmallRun run;
    const auto exported = run.folder.path() / "exported";
    call(run_export, {run.out.string(), exported.string()});
    const std::vector<std::string> flags{"--prompt", "line 7",  "--tokens", "40",        "--seed",
                                         "5",        "--top-k", "20",       "--threads", "2"};
    const auto with = [&](const fs::path& model, std::vector<std::string> more) {
        more.insert(more.begin(), model.string());
        more.insert(more.end(), flags.begin(), flags.end());
        return call(run_generate, more);
    };
    const auto from_run = with(run.out, {});
    CHECK(from_run.code == 0);
    CHECK(from_run.result.size() == 6 + 40 + 1);  // more than the context: the window slides
    CHECK(from_run.result.starts_with("line 7"));
    CHECK(with(exported, {}).result == from_run.result);
    CHECK(with(run.out, {}).result == from_run.result);
    const auto json = nlohmann::json::parse(with(run.out, {"--json", "-"}).result);
    CHECK(json["tokens"] == 40);
    const auto long_prompt =
        call(run_generate, {run.out.string(), "--prompt", std::string(100, 'a'), "--tokens", "3",
                            "--temperature", "0"});
    CHECK(long_prompt.result.size() == 104);
}

TEST_CASE("verbs: generate refuses what it cannot do, by name") {
    const SmallRun run;
    const auto out = run.out.string();
    CHECK_THROWS_WITH(call(run_generate, {out, "--host-mem", "20000"}),
                      Contains("20000") || Contains("19.5"));
    CHECK_THROWS_AS(call(run_generate, {out, "--host-mem", "20000"}), offload::PlanRefused);
    CHECK_THROWS_AS(call(run_generate, {out, "--temperature", "-1"}), UsageError);
    CHECK_THROWS_AS(call(run_generate, {out, "--prompt", ""}), UsageError);
    CHECK_THROWS_AS(call(run_generate, {}), UsageError);
    CHECK_THROWS_WITH(call(run_generate, {run.nvme.string()}), Contains("neither"));
    const auto exported = run.folder.path() / "exported";
    call(run_export, {out, exported.string()});
    std::ofstream(exported / "tokenizer.json") << "{}";
    CHECK_THROWS_WITH(call(run_generate, {exported.string()}), Contains("tokenizer"));
}

TEST_CASE("verbs: inspect lists a run and finds damage") {
    const SmallRun run;
    const auto sound = call(run_inspect, {run.out.string(), "--json", "-"});
    CHECK(sound.code == 0);
    const auto root = nlohmann::json::parse(sound.result);
    CHECK(root["verified"] == true);
    CHECK(root["damage"].empty());
    CHECK(root["tiles_checked"] > 0);
    CHECK(root["commit"]["iteration"] == 2);
    CHECK(root["settings"]["model"] == "gpt2:2x32x2");
    CHECK(root["tensors"][0]["name"] == "transformer.wte.weight");
    CHECK(root["tensors"][0]["updates"] == 2);
    CHECK_THAT(sound.human, Contains("transformer.ln_f.bias") && Contains("whole"));

    const offload::StateReader reader(run.out, nvme::BackendKind::threads);
    std::vector<fs::path> extents;
    for (const auto& entry : fs::directory_iterator(reader.manifest().extents_folder)) {
        if (entry.path().filename().string().starts_with("extents."))
            extents.push_back(entry.path());
    }
    REQUIRE(extents.size() == 1);
    damage(extents[0]);
    const auto bad = call(run_inspect, {run.out.string(), "--json", "-"});
    const auto damages = nlohmann::json::parse(bad.result)["damage"];
    CHECK(bad.code == 1);
    REQUIRE_FALSE(damages.empty());
    CHECK(damages.size() == root["tiles_checked"]);
    CHECK_THAT(bad.human, Contains(extents[0].string()) && Contains(damages[0].get<std::string>()));
    CHECK_THROWS_AS(call(run_export, {run.out.string(), (run.folder.path() / "bad").string()}),
                    offload::IntegrityError);
    CHECK_FALSE(fs::exists(run.folder.path() / "bad" / huggingface_config_name));
    CHECK_FALSE(fs::exists(run.folder.path() / "bad" / huggingface_weights_name));
    CHECK(call(run_inspect, {run.out.string(), "--verify", "off"}).code == 0);
    CHECK_THROWS_AS(call(run_inspect, {run.nvme.string()}), offload::FolderRefused);
}

TEST_CASE("verbs: clean touches a dead run's files alone, and only when told to") {
    const SmallRun run;
    const auto extents = run.nvme / offload::StateFolder::extents_name;
    CHECK_THAT(call(run_clean, {run.nvme.string(), "--yes"}).human, Contains("nothing"));
    CHECK(call(run_inspect, {run.out.string()}).code == 0);
    fs::remove_all(run.out);
    const auto listed = call(run_clean, {run.nvme.string(), "--json", "-"});
    CHECK(listed.code == 0);
    const auto root = nlohmann::json::parse(listed.result);
    REQUIRE(root["leftovers"].size() == 1);
    CHECK(root["removed"] == false);
    CHECK_FALSE(fs::is_empty(extents));
    std::ofstream(run.nvme / "precious.txt") << "mine";
    CHECK(nlohmann::json::parse(
              call(run_clean, {run.nvme.string(), "--yes", "--json", "-"}).result)["removed"] ==
          true);
    CHECK(fs::exists(run.nvme / "precious.txt"));
    CHECK((!fs::exists(extents) || fs::is_empty(extents)));
    CHECK_THROWS_AS(call(run_clean, {}), UsageError);
    CHECK_THROWS_AS(call(run_clean, {(run.folder.path() / "absent").string()}), UsageError);
}

TEST_CASE("verbs: info and every --help answer") {
    const testing::TemporaryFolder folder;
    const auto info = call(run_info, {"--dir", folder.path().string(), "--json", "-"});
    CHECK(info.code == 0);
    CHECK(nlohmann::json::parse(info.result)["folder"]["free_bytes"] > 0);
    CHECK_THROWS_AS(call(run_info, {"--dir", (folder.path() / "absent").string()}), UsageError);
    for (const RunVerb verb : {run_info, run_clean, run_inspect, run_export, run_generate}) {
        const auto help = call(verb, {"--help"});
        CHECK(help.code == 0);
        CHECK_THAT(help.result, Contains("--json"));
    }
}

}  // namespace spillway::engine
