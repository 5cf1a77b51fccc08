// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <map>
#include <memory>
#include <thread>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "cpu_optim/isa.h"
#include "offload/detail/drives/tile_store.h"
#include "tests/offload/tensor_script.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;

namespace {

constexpr std::chrono::seconds patience(60);
constexpr TensorId head = 7;  ///< the last, of 350000 elements, bf16

/// All state on the drive.
TensorOptimizerOptions starved(const TemporaryFolder& folder, Commits commits) {
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{7} << 20;
    options.chunk_bytes = std::size_t{64} << 10;
    options.isa = cpu_optim::supported_isas().back();
    options.nvme = folder.path();
    if (commits == Commits::possible)
        options.out = folder.path() / "out";
    return options;
}

using Result = decltype(FakeScript::result);

void set_backend(TensorOptimizerOptions& options, const std::shared_ptr<FakeLog>& log,
                 const Result& result) {
    options.io.backend_factory = [=](std::size_t depth) {
        FakeScript script;
        script.depth = depth;
        script.order = CompletionOrder::shuffled;
        script.result = result;
        return std::make_unique<FakeBackend>(script, log);
    };
}

/// The text of what `call` throws; "" for nothing.
template <typename Call>
std::string error_of(Call call) {
    try {
        call();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

/// Every call that drives the optimizer, each with what it threw.
std::map<std::string, std::string> errors_of_all_calls(TensorOptimizer& optimizer,
                                                       std::vector<ClientTensorValues>& model,
                                                       bool keeps_commits) {
    std::vector<float> values(model[head].elements());
    std::vector<std::int16_t> residues(values.size());
    std::map<std::string, std::string> errors;
    const auto call = [&](const char* name, auto body) { errors[name] = error_of(body); };
    call("give_gradient", [&] { optimizer.give_gradient(0, {model[0].fp32.data()}); });
    call("discard_gradients", [&] { optimizer.discard_gradients(); });
    call("begin_step", [&] { optimizer.begin_step({}); });
    call("begin_streamed_step", [&] { optimizer.begin_streamed_step(1); });
    call("wait", [&] { optimizer.wait(); });
    call("wait with limit", [&] { static_cast<void>(optimizer.wait(std::chrono::seconds(1))); });
    call("wait_for", [&] { optimizer.wait_for(head); });
    call("recover", [&] { static_cast<void>(optimizer.recover()); });
    if (keeps_commits)
        call("begin_commit", [&] { optimizer.begin_commit({}); });
    call("steps", [&] { static_cast<void>(optimizer.steps(0)); });
    call("set_steps", [&] { optimizer.set_steps(0, 1); });
    call("read_state", [&] { optimizer.read_state(head, 0, 0, values); });
    call("write_state", [&] { optimizer.write_state(head, 0, 0, values); });
    call("state_view", [&] { static_cast<void>(optimizer.state_view(head, 0)); });
    call("read_masters", [&] { optimizer.read_masters(head, 0, values); });
    call("read_residue", [&] { optimizer.read_residue(head, 0, residues); });
    call("write_residue", [&] { optimizer.write_residue(head, 0, residues); });
    call("reset_residue", [&] { optimizer.reset_residue(head); });
    call("rebind", [&] { optimizer.rebind(head, model[head].data()); });
    return errors;
}

void check_poisoned(TensorOptimizer& optimizer, std::vector<ClientTensorValues>& model,
                    bool keeps_commits, const std::string& first_error) {
    for (const auto& [name, error] : errors_of_all_calls(optimizer, model, keeps_commits)) {
        CAPTURE(name);
        CHECK(error == first_error);
    }
}

/// Every weight is as it stood after one iteration or after the next, in runs of a tile.
void check_between(const std::vector<ClientTensorValues>& model, const ClientSnapshot& before,
                   const ClientSnapshot& after) {
    const auto weights = bits_of(model);
    std::size_t strange = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
        strange += weights[i] != before.weights[i] && weights[i] != after.weights[i] ? 1u : 0u;
    CHECK(strange == 0);
}

/// Changes one byte of a file, through its name or the name of its descriptor.
void damage(const std::filesystem::path& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ 0x10));
    file.flush();
    REQUIRE(file.good());
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::fdatasync(descriptor) == 0);
    ::close(descriptor);
}

/// The scratch file that this process holds open, which has no name.
std::filesystem::path scratch_descriptor(const std::filesystem::path& folder) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code ignored;
        const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
        if (target.starts_with((folder / "").string()) && target.ends_with(" (deleted)"))
            return entry.path();
    }
    return {};
}

std::filesystem::path extents_file(const TemporaryFolder& folder) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
        if (entry.path().filename() == "extents.0")
            return entry.path();
    }
    return {};
}

/// The layout of the test's model: planes in the order of a PlaneSet.
std::uint64_t tile_offset(Commits commits, Plane plane, unsigned copy, std::uint64_t tile) {
    PlaneSet stored;
    if (commits == Commits::possible)
        stored.insert(Plane::weight);
    for (const auto kept : {Plane::residue, Plane::m, Plane::v})
        stored.insert(kept);
    std::vector<TensorSpec> specs;
    for (const auto& values : client_model())
        specs.push_back({values.name, values.shape, values.group, 1});
    const ElementOrder order(specs);
    const auto durability = commits == Commits::possible ? Durability::on : Durability::off;
    return detail::ExtentLayout(order.tiles(), durability, stored).offset_bytes(plane, copy, tile);
}

constexpr std::uint64_t damaged_tile =
    21;  ///< in the middle of `head`; odd ones stay in memory last

}  // namespace

TEST_CASE("the first failure of the drive is told by every later call", "[tensor_optimizer]") {
    const TensorScript script;
    const auto expected = script.uninterrupted();
    for (const auto commits : {Commits::possible, Commits::never}) {
        const bool keeps = commits == Commits::possible;
        const auto iterate_all = [&](TensorOptimizer& optimizer, auto& model, auto& iteration) {
            for (iteration = 1; iteration <= TensorScript::iterations; ++iteration) {
                script.iterate(optimizer, model, iteration);
                if (keeps && TensorScript::commits_after(iteration))
                    optimizer.begin_commit(TensorScript::commit_after(iteration));
            }
            optimizer.wait();
            static_cast<void>(snapshot(optimizer, model));
        };
        std::size_t operations = 0;
        {
            const TemporaryFolder folder;
            auto options = starved(folder, commits);
            const auto log = std::make_shared<FakeLog>();
            set_backend(options, log, {});
            auto model = script.start();
            std::uint64_t iteration = 0;
            TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
            iterate_all(optimizer, model, iteration);
            CHECK((bits_of(model) == expected.back().weights));
            operations = log->operations.size();
        }
        constexpr std::array<std::int64_t, 3> failures{-EIO, -ENOSPC, 0};
        constexpr std::size_t samples = 20;
        for (std::size_t sample = 0; sample < samples; ++sample) {
            const auto victim = operations * sample / samples + sample % 3;
            CAPTURE(keeps, operations, victim);
            const Watchdog watchdog(patience);
            const TemporaryFolder folder;
            auto options = starved(folder, commits);
            set_backend(options, std::make_shared<FakeLog>(),
                        [&](const nvme::BackendOperation& operation,
                            std::size_t number) -> std::optional<std::int64_t> {
                            const bool is_flush = operation.operation == nvme::IoOperation::flush;
                            if (number != victim)
                                return std::nullopt;
                            return is_flush ? -EIO : failures[sample % failures.size()];
                        });
            auto model = script.start();
            std::unique_ptr<TensorOptimizer> optimizer;
            std::uint64_t iteration = 0;
            const auto error = error_of([&] {
                optimizer = std::make_unique<TensorOptimizer>(parameters_of(model),
                                                              TensorScript::groups(), options);
                iterate_all(*optimizer, model, iteration);
                optimizer->begin_step({});  // meets what was read ahead for it
                optimizer->wait();
            });
            CHECK_THAT(error, Catch::Contains(folder.path().string()));
            if (optimizer == nullptr)
                continue;
            CHECK_THAT(error, Catch::Contains("offset") || Catch::Contains("flush"));
            check_poisoned(*optimizer, model, keeps, error);
            const auto last = std::min(iteration, TensorScript::iterations);
            if (last != 3)  // its edits may be missing
                check_between(model, expected[last - 1], expected[last]);
        }
    }
}

TEST_CASE("a failure in a streamed step is told by every later call", "[tensor_optimizer]") {
    const Watchdog watchdog(patience);
    const TensorScript script;
    const TemporaryFolder folder;
    auto options = starved(folder, Commits::never);
    set_backend(
        options, std::make_shared<FakeLog>(),
        [](const nvme::BackendOperation& operation, std::size_t) -> std::optional<std::int64_t> {
            if (operation.operation == nvme::IoOperation::write)
                return -EIO;
            return std::nullopt;
        });
    auto model = script.start();
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    optimizer.begin_streamed_step(1.0);
    const std::vector<float> gradient(model[head].elements(), 0.5f);
    std::string first;
    for (TensorId tensor = 0; tensor <= head && first.empty(); ++tensor)
        first = error_of([&] { optimizer.give_gradient(tensor, {gradient.data()}); });
    if (first.empty())
        first = error_of([&] { optimizer.wait_for(head); });
    // The step is still under way: no end_gradients().
    CHECK_THAT(first, Catch::Contains("spillway.scratch") && Catch::Contains("offset"));
    CHECK(error_of([&] { optimizer.give_gradient(5, {gradient.data()}); }) == first);
    CHECK(error_of([&] { optimizer.wait(); }) == first);
    CHECK(error_of([&] { static_cast<void>(optimizer.wait(std::chrono::seconds(1))); }) == first);
    CHECK(error_of([&] { optimizer.end_gradients(); }) == first);
    check_poisoned(optimizer, model, false, first);
}

TEST_CASE("short transfers change no bit", "[tensor_optimizer]") {
    const Watchdog watchdog(patience);
    const TensorScript script;
    const auto expected = script.uninterrupted();
    const TemporaryFolder folder;
    auto options = starved(folder, Commits::possible);
    const auto shorten = [](const nvme::BackendOperation& operation,
                            std::size_t number) -> std::optional<std::int64_t> {
        if (number % 3 != 0 || operation.length_bytes <= 4096)
            return std::nullopt;
        return static_cast<std::int64_t>(1 + number * 7919 % operation.length_bytes);
    };
    set_backend(options, std::make_shared<FakeLog>(), shorten);
    {
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        CHECK(script.run(optimizer, model, 0).error.empty());
        CHECK((snapshot(optimizer, model) == expected.back()));
    }
    auto model = script.start();
    TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
    const auto note = optimizer.recover();
    REQUIRE(note.has_value());
    CHECK((snapshot(optimizer, model) == expected[note->iteration]));
}

TEST_CASE(
    "damage in the running store is named and met by the step or the reader that comes "
    "across it",
    "[tensor_optimizer]") {
    const TensorScript script;
    for (const auto commits : {Commits::possible, Commits::never}) {
        for (const auto plane : {Plane::residue, Plane::m, Plane::v}) {
            for (const bool by_reader : {false, true}) {
                const bool keeps = commits == Commits::possible;
                CAPTURE(keeps, plane_name(plane), by_reader);
                const Watchdog watchdog(patience);
                const TemporaryFolder folder;
                auto model = script.start();
                TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(),
                                          starved(folder, commits));
                script.iterate(optimizer, model, 1);
                const auto path = keeps ? extents_file(folder) : scratch_descriptor(folder.path());
                REQUIRE_FALSE(path.empty());
                const auto offset = tile_offset(commits, plane, 0, damaged_tile);
                damage(path, offset + 1001);
                std::vector<float> values(model[head].elements());
                const auto error = error_of([&] {
                    if (!by_reader)
                        script.iterate(optimizer, model, 2);
                    else if (plane == Plane::residue)
                        optimizer.read_masters(head, 0, values);
                    else
                        optimizer.read_state(head, plane == Plane::m ? 0 : 1, 0, values);
                });
                CHECK_THAT(error, Catch::Contains("tensor 'head'") &&
                                      Catch::Contains(fmt::format("plane {}", plane_name(plane))) &&
                                      Catch::Contains(fmt::format("tile {}", damaged_tile)) &&
                                      Catch::Contains(fmt::format("offset {} ", offset)) &&
                                      Catch::Contains(folder.path().string()));
                check_poisoned(optimizer, model, keeps, error);
            }
        }
    }
}

TEST_CASE("damage in a committed copy is named by recover()", "[tensor_optimizer]") {
    const TensorScript script;
    for (const auto plane : {Plane::weight, Plane::residue, Plane::m}) {
        CAPTURE(plane_name(plane));
        const Watchdog watchdog(patience);
        const TemporaryFolder folder;
        auto options = starved(folder, Commits::possible);
        {
            auto model = script.start();
            TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
            CHECK(script.run(optimizer, model, 0).durable == 4);
        }
        for (const unsigned copy : {0u, 1u})
            damage(extents_file(folder), tile_offset(Commits::possible, plane, copy, damaged_tile));
        if (plane == Plane::m)
            options.host_bytes = std::size_t{64} << 20;  // loaded at once
        auto model = script.start();
        TensorOptimizer optimizer(parameters_of(model), TensorScript::groups(), options);
        const auto error = error_of([&] { static_cast<void>(optimizer.recover()); });
        CHECK_THAT(error, Catch::Contains("tensor 'head'") &&
                              Catch::Contains(fmt::format("plane {}", plane_name(plane))) &&
                              Catch::Contains(fmt::format("tile {}", damaged_tile)) &&
                              Catch::Contains("extents.0") &&
                              Catch::Contains("the last commit names"));
        check_poisoned(optimizer, model, true, error);
    }
}
