// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/cli/backend_option.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/cli/verbs/train.h"
#include "engine/settings/train_settings.h"
#include "nvme/io_backend.h"
#include "tests/support/skip.h"
#include "tests/support/temporary_folder.h"

namespace spillway::engine {

namespace {

/// The summary of a short run whose state lies on the drive.
nlohmann::json train(const std::filesystem::path& folder, const std::string& backend) {
    const auto text = folder / "text.txt";
    const auto nvme = folder / "nvme";
    std::filesystem::create_directory(nvme);
    std::ofstream file(text);
    for (int i = 0; i < 400; ++i)
        file << "line " << i << " of what is to be learnt\n";
    file.close();
    const std::vector<std::string> arguments{"--model",
                                             "gpt2:2x32x2",
                                             "--context",
                                             "24",
                                             "--data",
                                             text.string(),
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
                                             "--json",
                                             "-",
                                             "--io-backend",
                                             backend,
                                             "--out",
                                             (folder / backend).string()};
    std::ostringstream human;
    std::ostringstream result;
    Console console(human, result, HumanStream::plain);
    REQUIRE(run_train(arguments, console) == 0);
    return nlohmann::json::parse(result.str());
}

}  // namespace

TEST_CASE("backend_option: every name means the same to all verbs") {
    const auto [name, kind] = GENERATE(table<std::string, nvme::BackendKind>({
        {"auto", nvme::BackendKind::automatic},
        {"io_uring", nvme::BackendKind::io_uring},
        {"libaio", nvme::BackendKind::libaio},
        {"threads", nvme::BackendKind::threads},
    }));
    CHECK(backend_kind(name) == kind);
    TrainSettings settings;
    settings.io_backend = name;
    CHECK(io_backend_kind(settings) == kind);
    std::string into;
    OptionSet options("verb", "does something");
    add_backend_option(options, into);
    const std::vector<std::string> arguments{"--io-backend", name};
    CHECK(options.parse(arguments) == OptionSet::Outcome::run);
    CHECK(into == name);
}

TEST_CASE("backend_option: a name that is no backend is refused") {
    CHECK_THROWS_AS(backend_kind("aio"), std::invalid_argument);
}

TEST_CASE("backend_option: a run by libaio learns the same as one by threads") {
    if (!nvme::libaio_refusal().empty())
        return testing::skip("libaio: " + nvme::libaio_refusal());
    const testing::TemporaryFolder folder;
    const auto by_libaio = train(folder.path(), "libaio");
    const auto by_threads = train(folder.path(), "threads");
    CHECK(by_libaio["io_backend"] == "libaio");
    CHECK(by_threads["io_backend"] == "threads");
    CHECK(by_libaio["weights_xxh3"] == by_threads["weights_xxh3"]);
}

}  // namespace spillway::engine
