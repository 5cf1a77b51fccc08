// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/detail/activations/activation_mover.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "offload/detail/activations/activation_needs.h"
#include "offload/errors.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::offload::detail;
using namespace spillway::testing;

namespace {

constexpr std::size_t layers = 7;
constexpr std::size_t micro_batches = 3;
/// Two pieces, of which the second is no whole block.
constexpr std::size_t input_bytes = activation_piece_bytes + 5 * 4096 + 12;

ActivationLayout layout_of(const std::string& tiers) {
    ActivationLayout layout{.tiers = {}, .micro_batches = micro_batches, .bytes = input_bytes};
    for (const char tier : tiers)
        layout.tiers.push_back(tier == 'd'   ? ActivationTier::device
                               : tier == 'h' ? ActivationTier::host
                                             : ActivationTier::nvme);
    return layout;
}

FakeScript script_of(CompletionOrder order, std::chrono::microseconds delay = {}) {
    FakeScript script;
    script.order = order;
    script.delay = delay;
    return script;
}

struct Scene {
    std::string device = "cpu";
    std::string tiers = "nnnnndd";
    std::size_t drives = 1;
    FakeScript script = {};
    bool real_backend = false;
};

/// A model's pass in little: the inputs of all layers take turns in two places, as the last two
/// layers' do too.
class Passes {
  public:
    explicit Passes(const Scene& scene)
        : layout_(layout_of(scene.tiers)),
          device_(cuda::make_device(scene.device, std::size_t{64} << 20)),
          compute_(device_->create_stream("compute")),
          queues_(scene.drives, options_of(scene)),
          ledger_(needed_bytes()) {
        std::vector<std::filesystem::path> folders;
        for (std::size_t drive = 0; drive < scene.drives; ++drive) {
            folders.push_back(folder_.path() / fmt::format("drive{}", drive));
            std::filesystem::create_directory(folders.back());
        }
        for (std::size_t place = 0; place < 2; ++place)
            places_.push_back(device_->allocate(micro_batches * input_bytes));
        const std::vector<double> rates(scene.drives, 1.0);
        mover_ = std::make_unique<ActivationMover>(
            ActivationMover::Context{monitor_, layout_, *device_, *compute_, stalls_, {}},
            ActivationSpill(queues_, folders, layout_, rates), ledger_);
        CHECK(ledger_.total_bytes() == needed_bytes());
        for (const auto& folder : folders)
            CHECK(std::filesystem::is_empty(folder));  // whatever ends the process leaves nothing
    }
    ~Passes() {
        mover_.reset();
        compute_->synchronize();
    }

    /// One step; the number of inputs that were not in backward what they were in forward.
    std::size_t step(unsigned seed) {
        forward(seed);
        backward(seed);
        compute_->synchronize();
        return std::exchange(wrong_, 0);
    }

    void forward(unsigned seed) {
        for (std::size_t layer = 0; layer < layers; ++layer) {
            for (std::size_t micro = 0; micro < micro_batches; ++micro) {
                if (layer >= 2)
                    mover_->wait_saved(layer - 2, micro);
                auto* const at = place(layer, micro);
                compute_->launch("make", [=] { fill(at, layer, micro, seed); });
                if (moves(layer))
                    mover_->save(layer, micro, at);
            }
        }
    }

    void backward(unsigned seed) {
        for (std::size_t layer = layers; layer-- > 0;) {
            for (std::size_t micro = 0; micro < micro_batches; ++micro) {
                if (moves(layer))
                    mover_->wait_fetched(layer, micro);
                auto* const at = place(layer, micro);
                compute_->launch("use", [=, this] {
                    if (!holds(at, layer, micro, seed))
                        ++wrong_;
                    std::memset(at, 0xEE, input_bytes);
                });
                if (layer >= 2)
                    mover_->fetch(layer - 2, micro, at);
            }
        }
    }

    [[nodiscard]] nvme::IoStatistics io() const { return queues_.sum(); }
    [[nodiscard]] std::uint64_t stored_bytes() const {
        return activation_needs(layout_).disk_bytes;
    }
    [[nodiscard]] Monitor& monitor() { return monitor_; }

  private:
    static IoOptions options_of(const Scene& scene) {
        IoOptions options;
        if (!scene.real_backend)
            options.backend_factory = [script = scene.script](std::size_t depth) {
                auto own = script;
                own.depth = depth;
                return std::make_unique<FakeBackend>(std::move(own), std::make_shared<FakeLog>());
            };
        return options;
    }
    [[nodiscard]] std::size_t needed_bytes() const {
        const auto needs = activation_needs(layout_);
        return arena_bytes(needs.resident_bytes) + arena_bytes(needs.staging_bytes) +
               needs.table_bytes;
    }
    [[nodiscard]] bool moves(std::size_t layer) const {
        return layout_.tiers[layer] != ActivationTier::device;
    }
    [[nodiscard]] std::byte* place(std::size_t layer, std::size_t micro) const {
        return places_[layer % 2].data() + micro * input_bytes;
    }
    static std::byte value(std::size_t i, std::size_t layer, std::size_t micro, unsigned seed) {
        return static_cast<std::byte>(i * 31 + i / 4096 * 7 + layer * 53 + micro * 101 + seed * 17);
    }
    static void fill(std::byte* at, std::size_t layer, std::size_t micro, unsigned seed) {
        for (std::size_t i = 0; i < input_bytes; ++i)
            at[i] = value(i, layer, micro, seed);
    }
    static bool holds(const std::byte* at, std::size_t layer, std::size_t micro, unsigned seed) {
        for (std::size_t i = 0; i < input_bytes; ++i)
            if (at[i] != value(i, layer, micro, seed))
                return false;
        return true;
    }

    TemporaryFolder folder_;
    ActivationLayout layout_;
    std::unique_ptr<cuda::Device> device_;
    std::unique_ptr<cuda::Stream> compute_;
    std::vector<cuda::DeviceBuffer> places_;
    Monitor monitor_;
    StallTotals stalls_;
    DriveQueues queues_;
    MemoryLedger ledger_;
    std::unique_ptr<ActivationMover> mover_;
    std::size_t wrong_ = 0;  ///< touched by the compute stream
};

/// Turns a bit of the file that is about to be read, behind the back of direct I/O.
void flip_bit(const nvme::BackendOperation& operation) {
    std::fstream file(fmt::format("/proc/self/fd/{}", operation.file->descriptor()),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(operation.offset_bytes + 100));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(operation.offset_bytes + 100));
    file.put(byte);
    REQUIRE(file.flush().good());
}

}  // namespace

TEST_CASE("activation mover: what comes back is what was made, wherever it was") {
    for (const auto* const device : {"cpu", "sim:64MiB", "sim:64MiB@1GB/s"}) {
        for (const auto* const tiers : {"hhhhhdd", "nnnnndd", "nhnhndd", "hnnhhdd"}) {
            for (const auto order : {CompletionOrder::in_order, CompletionOrder::reversed,
                                     CompletionOrder::shuffled}) {
                CAPTURE(device, tiers, static_cast<int>(order));
                Passes passes({.device = device, .tiers = tiers, .script = script_of(order)});
                for (unsigned step = 0; step < 2; ++step)
                    CHECK(passes.step(step) == 0);
                CHECK(passes.io().written_bytes == 2 * passes.stored_bytes());
                CHECK(passes.io().read_bytes == 2 * passes.stored_bytes());
            }
        }
    }
}

TEST_CASE("activation mover: two slow drives share what is moved") {
    Passes passes({.device = "sim:64MiB",
                   .drives = 2,
                   .script = script_of(CompletionOrder::shuffled, std::chrono::milliseconds(2))});
    CHECK(passes.step(0) == 0);
    CHECK(passes.io().read_bytes == passes.stored_bytes());
}

TEST_CASE("activation mover: through the machine's own backend") {
    Passes passes({.tiers = "nnhnndd", .real_backend = true});
    for (unsigned step = 0; step < 2; ++step)
        CHECK(passes.step(step) == 0);
}

TEST_CASE("activation mover: a drive's error ends the pass, by its name, and poisons") {
    for (const auto failing : {nvme::IoOperation::write, nvme::IoOperation::read}) {
        for (const auto* const device : {"cpu", "sim:64MiB"}) {
            CAPTURE(static_cast<int>(failing), device);
            FakeScript script;
            script.result = [failing](const nvme::BackendOperation& operation,
                                      std::size_t number) -> std::optional<std::int64_t> {
                return operation.operation == failing && number >= 4 ? std::optional(-EIO)
                                                                     : std::nullopt;
            };
            Passes passes({.device = device, .script = script});
            try {
                passes.step(0);
                FAIL("nothing was thrown");
            } catch (const std::system_error& error) {
                CHECK(error.code() == std::errc::io_error);
                CHECK(std::string(error.what()).find("spillway.scratch") != std::string::npos);
            }
            CHECK_THROWS_AS(passes.monitor().throw_if_poisoned(), std::system_error);
        }
    }
}

TEST_CASE("activation mover: a bit that turned on the drive is found") {
    FakeScript script;
    script.result = [flipped = false](const nvme::BackendOperation& operation,
                                      std::size_t) mutable -> std::optional<std::int64_t> {
        if (operation.operation == nvme::IoOperation::read && !std::exchange(flipped, true))
            flip_bit(operation);
        return std::nullopt;
    };
    Passes passes({.script = script});
    try {
        passes.step(0);
        FAIL("nothing was thrown");
    } catch (const IntegrityError& error) {
        const std::string text = error.what();
        CHECK(text.find("input of layer 4, micro-batch 0, piece 0") != std::string::npos);
        CHECK(text.find("--resume") != std::string::npos);
    }
    CHECK_THROWS_AS(passes.monitor().throw_if_poisoned(), IntegrityError);
}

TEST_CASE("activation mover: what is under way at its end is seen through") {
    for (const auto* const device : {"cpu", "sim:64MiB@1GB/s"}) {
        Passes passes(
            {.device = device,
             .script = script_of(CompletionOrder::reversed, std::chrono::milliseconds(5))});
        CHECK(passes.step(3) == 0);
        passes.forward(4);
    }
}

TEST_CASE("activation needs: what a layout takes") {
    const auto none = activation_needs(layout_of("ddddddd"));
    CHECK(none.resident_bytes + none.staging_bytes + none.table_bytes + none.disk_bytes == 0);
    const auto slot = activation_slot_bytes(layout_of("n"));
    CHECK(slot == activation_piece_bytes + 6 * 4096);
    const auto both = activation_needs(layout_of("nhnhndd"));
    CHECK(both.resident_bytes == 2 * micro_batches * slot);
    CHECK(both.disk_bytes == 3 * micro_batches * slot);
    CHECK(both.staging_bytes == activation_pieces * activation_piece_bytes);
    ActivationLayout small{.tiers = {ActivationTier::nvme}, .micro_batches = 1, .bytes = 100};
    CHECK(activation_needs(small).staging_bytes == activation_pieces * 4096);
}
