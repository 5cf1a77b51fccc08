// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "offload/tensor_optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stop_token>
#include <string>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/offload/tensor_model.h"
#include "tests/support/temporary_folder.h"

using namespace spillway;
using namespace spillway::offload;
using namespace spillway::testing;
using cpu_optim::AdamHyperParameters;
using cpu_optim::HyperParameters;

namespace {

constexpr std::uint64_t iterations = 7;
constexpr double gradient_scale = 0.75;

std::vector<HyperParameters> adam_groups(double learning_rate = 0.01) {
    return {AdamHyperParameters{.learning_rate = learning_rate},
            AdamHyperParameters{.learning_rate = learning_rate / 2, .weight_decay = 0}};
}

struct Placement {
    std::size_t host_bytes = std::size_t{1} << 30;
    std::size_t chunk_bytes = 0;
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::Isa::scalar;
    nvme::BackendKind io_backend = nvme::BackendKind::automatic;
    bool on_drive = false;
};

/// All that fits is staging: every plane is on the drive.
Placement starved() {
    Placement placement;
    placement.host_bytes = std::size_t{6} << 20;
    placement.chunk_bytes = std::size_t{64} << 10;
    placement.on_drive = true;
    return placement;
}

TensorOptimizerOptions options_for(const Placement& placement, const std::filesystem::path& drive) {
    TensorOptimizerOptions options;
    options.host_bytes = placement.host_bytes;
    options.chunk_bytes = placement.chunk_bytes;
    options.threads = placement.threads;
    options.isa = placement.isa;
    options.io.every_drive.backend = placement.io_backend;
    if (placement.on_drive)
        options.nvme = drive;
    return options;
}

/// The gradients of one iteration; must outlive the step.
class IterationGradients {
  public:
    IterationGradients(const std::vector<ClientTensorValues>& model, std::uint64_t iteration)
        : model_(model), iteration_(iteration) {
        for (std::size_t index = 0; index < model.size(); ++index)
            bytes_.push_back(gradient_bytes_of(model[index], index, iteration));
    }
    void give(TensorOptimizer& optimizer, TensorId tensor) const {
        if (model_[tensor].has_gradient(iteration_))
            optimizer.give_gradient(tensor, {bytes_[tensor].data(), model_[tensor].gradient_type});
    }
    void give_all(TensorOptimizer& optimizer) const {
        for (TensorId tensor = 0; tensor < model_.size(); ++tensor)
            give(optimizer, tensor);
    }

  private:
    const std::vector<ClientTensorValues>& model_;
    std::uint64_t iteration_;
    std::vector<std::vector<std::byte>> bytes_;
};

void plain_step(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
                std::uint64_t iteration,
                const StepRule& rule = {.gradient_scale = gradient_scale,
                                        .max_norm = std::nullopt}) {
    const IterationGradients gradients(model, iteration);
    gradients.give_all(optimizer);
    optimizer.begin_step(rule);
    optimizer.wait();
}

/// Gradients from two threads, last tensors first.
void streamed_step(TensorOptimizer& optimizer, const std::vector<ClientTensorValues>& model,
                   std::uint64_t iteration) {
    const IterationGradients gradients(model, iteration);
    optimizer.begin_streamed_step(gradient_scale);
    const auto give_every_other = [&](TensorId first) {
        for (auto tensor = static_cast<TensorId>(model.size()); tensor-- > 0;) {
            if (tensor % 2 == first)
                gradients.give(optimizer, tensor);
        }
    };
    std::thread other(give_every_other, 1);
    give_every_other(0);
    other.join();
    optimizer.end_gradients();
    optimizer.wait();
}

std::vector<std::uint32_t> reference_bits(const std::vector<HyperParameters>& groups) {
    auto model = client_model();
    ReferenceOptimizer reference(model, groups);
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
        reference.step(iteration, gradient_scale);
    return bits_of(model);
}

std::vector<std::uint32_t> trained_bits(const std::vector<HyperParameters>& groups,
                                        const Placement& placement, bool streamed = false) {
    const TemporaryFolder drive;
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), groups, options_for(placement, drive.path()));
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration) {
        if (streamed)
            streamed_step(optimizer, model, iteration);
        else
            plain_step(optimizer, model, iteration);
    }
    const auto statistics = optimizer.statistics();
    CHECK(statistics.host_bytes <= placement.host_bytes);
    if (placement.on_drive)
        CHECK(std::filesystem::is_empty(drive.path()));
    return bits_of(model);
}

/// Catch would spell out both in full.
template <typename A, typename B>
std::size_t differences(const A& a, const B& b) {
    if (a.size() != b.size())
        return std::max(a.size(), b.size());
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        count += a[i] == b[i] ? 0u : 1u;
    return count;
}

}  // namespace

TEST_CASE("every optimizer in memory has the bits of its reference", "[tensor_optimizer]") {
    using namespace cpu_optim;
    const std::vector<std::vector<HyperParameters>> all{
        adam_groups(),
        {AdamHyperParameters{.decay = WeightDecay::l2, .amsgrad = Amsgrad::on},
         AdamHyperParameters{.objective = Objective::maximise}},
        {SgdHyperParameters{.learning_rate = 0.1},
         SgdHyperParameters{.learning_rate = 0.1, .momentum = 0.9, .nesterov = Nesterov::on}},
        {SgdHyperParameters{.learning_rate = 0.1}, SgdHyperParameters{.learning_rate = 0.2}},
        {AdagradHyperParameters{.initial_accumulator_value = 0.1}, AdagradHyperParameters{}},
        {LionHyperParameters{.weight_decay = 0.1}, LionHyperParameters{}},
        {RmspropHyperParameters{.momentum = 0.9, .centred = Centred::on}, RmspropHyperParameters{}},
    };
    for (const auto& groups : all) {
        CAPTURE(optimizer_name(groups.front()));
        const auto expected = reference_bits(groups);
        CHECK(differences(trained_bits(groups, {}), expected) == 0);
        CHECK(differences(trained_bits(groups, starved()), expected) == 0);
    }
}

TEST_CASE("placement of client tensors changes no bit", "[tensor_optimizer]") {
    const auto expected = reference_bits(adam_groups());
    for (const auto isa : cpu_optim::supported_isas()) {
        for (const std::size_t chunk_kib : {0u, 64u, 192u, 1024u}) {
            for (const std::size_t host_mib : {6u, 9u, 64u}) {
                for (const bool streamed : {false, true}) {
                    Placement placement;
                    placement.isa = isa;
                    placement.chunk_bytes = chunk_kib << 10U;
                    placement.host_bytes = host_mib << 20U;
                    placement.threads = 1 + host_mib % 2;
                    placement.on_drive = true;
                    placement.io_backend =
                        streamed ? nvme::BackendKind::threads : nvme::BackendKind::automatic;
                    CAPTURE(cpu_optim::isa_name(isa), chunk_kib, host_mib, streamed);
                    try {
                        const auto bits = trained_bits(adam_groups(), placement, streamed);
                        CHECK(differences(bits, expected) == 0);
                    } catch (const PlanRefused& refused) {
                        CHECK(refused.needed_bytes > refused.available_bytes);
                        CHECK(chunk_kib > 64);
                    }
                }
            }
        }
    }
}

TEST_CASE("state, masters and residues are read where they live", "[tensor_optimizer]") {
    for (const auto& placement : {Placement{}, starved()}) {
        const TemporaryFolder drive;
        auto model = client_model();
        auto reference_model = client_model();
        ReferenceOptimizer reference(reference_model, adam_groups());
        TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                                  options_for(placement, drive.path()));
        for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
            reference.step(iteration, gradient_scale);
            plain_step(optimizer, model, iteration);
        }
        for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
            CAPTURE(model[tensor].name, placement.on_drive);
            const auto count = model[tensor].elements();
            std::vector<float> values(count);
            for (std::size_t plane = 0; plane < optimizer.state_planes(); ++plane) {
                optimizer.read_state(tensor, plane, 0, values);
                CHECK(differences(values, reference.state(tensor, plane)) == 0);
                const auto view = optimizer.state_view(tensor, plane);
                if (placement.on_drive || count == 0)
                    CHECK(view.empty());
                else
                    CHECK(std::equal(view.begin(), view.end(), values.begin(), values.end()));
            }
            optimizer.read_masters(tensor, 0, values);
            CHECK(differences(values, reference.masters(tensor)) == 0);
            if (count > 2) {
                std::vector<float> middle(count - 2);
                optimizer.read_masters(tensor, 1, middle);
                CHECK(std::equal(middle.begin(), middle.end(), values.begin() + 1));
            }
        }
        CHECK(optimizer.steps(0) == 3);
        CHECK(optimizer.steps(6) == 1);
        const auto statistics = optimizer.statistics();
        CHECK(statistics.resident_state_bytes == (placement.on_drive ? 0 : statistics.state_bytes));
        CHECK((statistics.nvme_written_bytes != 0) == placement.on_drive);
    }
}

TEST_CASE("state that is written goes on as if it had been there", "[tensor_optimizer]") {
    const auto expected = reference_bits(adam_groups());
    for (const auto& placement : {Placement{}, starved()}) {
        const TemporaryFolder drive;
        auto model = client_model();
        TensorOptimizer first(parameters_of(model), adam_groups(),
                              options_for(Placement{}, drive.path()));
        for (std::uint64_t iteration = 1; iteration <= 4; ++iteration)
            plain_step(first, model, iteration);
        TensorOptimizer second(parameters_of(model), adam_groups(),
                               options_for(placement, drive.path()));
        for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
            const auto count = model[tensor].elements();
            const auto half = count / 2;
            std::vector<float> values(count);
            for (std::size_t plane = 0; plane < 2; ++plane) {
                first.read_state(tensor, plane, 0, values);
                second.write_state(tensor, plane, half, std::span(values).subspan(half));
                second.write_state(tensor, plane, 0, std::span(values).first(half));
            }
            if (model[tensor].type == ParameterType::bf16) {
                std::vector<std::int16_t> residues(count);
                first.read_residue(tensor, 0, residues);
                second.write_residue(tensor, 0, residues);
            }
            second.set_steps(tensor, first.steps(tensor));
        }
        for (std::uint64_t iteration = 5; iteration <= iterations; ++iteration)
            plain_step(second, model, iteration);
        CHECK(differences(bits_of(model), expected) == 0);
    }
}

TEST_CASE("values that the client edits are masters without residue", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    for (const auto& placement : {Placement{}, starved()}) {
        auto model = client_model();
        TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                                  options_for(placement, drive.path()));
        plain_step(optimizer, model, 1);
        constexpr TensorId edited = 3;
        model[edited].bf16.assign(model[edited].bf16.size(), 0x3F80);  // 1.0
        optimizer.reset_residue(edited);
        std::vector<float> masters(model[edited].elements());
        optimizer.read_masters(edited, 0, masters);
        CHECK(std::ranges::all_of(masters, [](float master) { return master == 1.0f; }));
        plain_step(optimizer, model, 2, {.gradient_scale = 0, .max_norm = std::nullopt});
        optimizer.read_masters(edited, 0, masters);
        CHECK(std::ranges::all_of(masters,
                                  [](float m) { return m != 1.0f && std::abs(m - 1) < 0.1f; }));
    }
}

TEST_CASE("clipping scales by the global norm", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    double squares = 0;
    const IterationGradients gradients(model, 1);
    for (std::size_t index = 0; index < model.size(); ++index) {
        if (!model[index].has_gradient(1))
            continue;
        auto as_fp32 = model[index];
        as_fp32.gradient_type = cpu_optim::GradientType::fp32;
        const auto bytes = gradient_bytes_of(as_fp32, index, 1);
        for (std::size_t i = 0; i < as_fp32.elements(); ++i) {
            float value = 0;
            std::memcpy(&value, bytes.data() + 4 * i, 4);
            squares += double{value} * value;
        }
    }
    TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                              options_for(starved(), drive.path()));
    gradients.give_all(optimizer);
    const auto report = optimizer.begin_step({.gradient_scale = 0.5, .max_norm = 1e-3});
    optimizer.wait();
    REQUIRE(report.norm.has_value());
    CHECK(*report.norm == Approx(0.5 * std::sqrt(squares)).epsilon(1e-12));
    CHECK(report.applied);

    auto reference_model = client_model();
    ReferenceOptimizer reference(reference_model, adam_groups());
    reference.step(1, 0.5 * std::min(1.0, 1e-3 / (*report.norm + 1e-6)));
    CHECK(differences(bits_of(model), bits_of(reference_model)) == 0);
}

TEST_CASE("a step that is stopped before it begins has changed nothing", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    const auto before = bits_of(model);
    TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                              options_for(starved(), drive.path()));
    const IterationGradients gradients(model, 1);
    gradients.give_all(optimizer);
    std::stop_source stop;
    stop.request_stop();
    CHECK_THROWS_AS(optimizer.begin_step({.nonfinite = NonfiniteRule::skip}, stop.get_token()),
                    StepStopped);
    optimizer.wait();
    CHECK(differences(bits_of(model), before) == 0);
    for (TensorId tensor = 0; tensor < model.size(); ++tensor) {
        CHECK(optimizer.steps(tensor) == 0);
        if (model[tensor].has_gradient(1))
            CHECK_THROWS_AS(gradients.give(optimizer, tensor), std::logic_error);
    }
    CHECK(optimizer.begin_step({.nonfinite = NonfiniteRule::skip}).applied);
    optimizer.wait();
    auto reference_model = client_model();
    ReferenceOptimizer reference(reference_model, adam_groups());
    reference.step(1, 1);
    CHECK(differences(bits_of(model), bits_of(reference_model)) == 0);
}

TEST_CASE("what is not finite follows the rule", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                              options_for(starved(), drive.path()));
    const auto before = bits_of(model);
    std::vector<float> bad(model[0].elements(), 1.0f);
    bad[29999] = std::numeric_limits<float>::infinity();
    bad[7] = std::numeric_limits<float>::quiet_NaN();

    optimizer.give_gradient(0, {bad.data()});
    const auto skipped = optimizer.begin_step({.nonfinite = NonfiniteRule::skip});
    optimizer.wait();
    CHECK_FALSE(skipped.applied);
    CHECK(skipped.nonfinite == 2);
    CHECK(skipped.nonfinite_tensor == "embedding");
    CHECK(differences(bits_of(model), before) == 0);
    CHECK(optimizer.steps(0) == 0);

    optimizer.give_gradient(0, {bad.data()});
    CHECK_THROWS_AS(optimizer.begin_step({.nonfinite = NonfiniteRule::stop}), NonfiniteGradient);
    CHECK(differences(bits_of(model), before) == 0);

    optimizer.give_gradient(0, {bad.data()});
    const auto taken = optimizer.begin_step({});
    optimizer.wait();
    CHECK(taken.applied);
    CHECK(std::isnan(model[0].fp32[7]));
    CHECK(std::isfinite(model[0].fp32[8]));
}

TEST_CASE("a commit brings weights, state and counters back", "[tensor_optimizer]") {
    const auto expected = reference_bits(adam_groups());
    for (const std::size_t host_mib : {7u, 9u, 1024u}) {
        CAPTURE(host_mib);
        const TemporaryFolder folder;
        std::filesystem::create_directory(folder.path() / "drive");
        auto placement = starved();
        placement.host_bytes = host_mib << 20U;
        auto options = options_for(placement, folder.path() / "drive");
        options.out = folder.path() / "out";
        {
            auto model = client_model();
            TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
            CHECK_FALSE(optimizer.recover().has_value());
            plain_step(optimizer, model, 1);
            optimizer.begin_commit({1, "first"});
            plain_step(optimizer, model, 2);
            plain_step(optimizer, model, 3);
            optimizer.begin_commit({3, "third"});
            plain_step(optimizer, model, 4);  // lost
            plain_step(optimizer, model, 5);
        }
        {
            auto fewer = client_model();
            fewer.pop_back();
            CHECK_THROWS_AS(TensorOptimizer(parameters_of(fewer), adam_groups(), options),
                            FolderRefused);
        }
        auto model = client_model();
        for (auto& values : model) {
            std::ranges::fill(values.fp32, 3.0f);
            std::ranges::fill(values.bf16, std::uint16_t{0x4000});
        }
        TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
        CHECK_THROWS_WITH(optimizer.begin_step({}), Catch::Contains("recover()"));
        const auto note = optimizer.recover();
        REQUIRE(note.has_value());
        CHECK(note->iteration == 3);
        CHECK(note->client_state == "third");
        CHECK(optimizer.steps(6) == 1);
        for (std::uint64_t iteration = 4; iteration <= iterations; ++iteration) {
            plain_step(optimizer, model, iteration);
            if (iteration == 5)
                optimizer.begin_commit({5, ""});
        }
        CHECK(differences(bits_of(model), expected) == 0);
    }
}

TEST_CASE("a folder whose run never committed starts from zeros", "[tensor_optimizer]") {
    const auto expected = reference_bits(adam_groups());
    const TemporaryFolder folder;
    auto placement = starved();
    placement.host_bytes = std::size_t{7} << 20;
    auto options = options_for(placement, folder.path());
    options.out = folder.path() / "out";
    {
        auto model = client_model();
        TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
        plain_step(optimizer, model, 1);
    }
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
    CHECK_FALSE(optimizer.recover().has_value());
    for (std::uint64_t iteration = 1; iteration <= iterations; ++iteration)
        plain_step(optimizer, model, iteration);
    CHECK(differences(bits_of(model), expected) == 0);
}

TEST_CASE("what the client does wrong is named and changes nothing", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    const auto options = options_for(starved(), drive.path());
    TensorOptimizer optimizer(parameters_of(model), adam_groups(), options);
    const float one = 1;
    optimizer.give_gradient(4, {&one});
    CHECK_THROWS_WITH(optimizer.give_gradient(4, {&one}),
                      Catch::Contains("'one'") && Catch::Contains("given before"));
    CHECK_THROWS_WITH(optimizer.begin_streamed_step(1.0), Catch::Contains("discard"));
    optimizer.discard_gradients();
    CHECK_THROWS_WITH(optimizer.end_gradients(), Catch::Contains("no streamed step"));
    CHECK_THROWS_WITH(optimizer.give_gradient(99, {&one}), Catch::Contains("99"));
    CHECK_THROWS_WITH(optimizer.give_gradient(0, {nullptr}), Catch::Contains("'embedding'"));
    CHECK_THROWS_WITH(optimizer.begin_step({.max_norm = 0.0}), Catch::Contains("max_norm"));
    CHECK_THROWS_WITH(optimizer.begin_commit({}), Catch::Contains("out"));
    CHECK_THROWS_WITH(optimizer.set_group(0, cpu_optim::LionHyperParameters{}),
                      Catch::Contains("Lion"));
    CHECK_THROWS_WITH(
        optimizer.set_group(0, AdamHyperParameters{.amsgrad = cpu_optim::Amsgrad::on}),
        Catch::Contains("make a new one"));
    CHECK_THROWS_WITH(optimizer.set_group(7, AdamHyperParameters{}), Catch::Contains("group 7"));
    std::vector<std::int16_t> residues(1);
    CHECK_THROWS_WITH(optimizer.read_residue(0, 0, residues), Catch::Contains("fp32"));
    std::vector<float> values(2);
    CHECK_THROWS_WITH(optimizer.read_state(4, 0, 0, values), Catch::Contains("'one'"));
    CHECK_THROWS_WITH(optimizer.read_state(4, 2, 0, {}), Catch::Contains("state plane 2"));

    optimizer.begin_streamed_step(1.0);
    CHECK_THROWS_WITH(optimizer.wait(), Catch::Contains("end_gradients"));
    CHECK_THROWS_WITH(optimizer.discard_gradients(), Catch::Contains("streamed"));
    CHECK_THROWS_WITH(optimizer.steps(0), Catch::Contains("end_gradients"));
    optimizer.end_gradients();
    optimizer.wait();
    CHECK(optimizer.steps(4) == 0);
}

TEST_CASE("a plan that cannot be is refused", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    auto options = options_for(starved(), {});
    options.nvme.clear();
    options.host_bytes = std::size_t{1} << 20;
    CHECK_THROWS_AS(TensorOptimizer(parameters_of(model), adam_groups(), options), PlanRefused);
    options.nvme = drive.path() / "missing";
    options.host_bytes = std::size_t{6} << 20;
    CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), adam_groups(), options),
                      Catch::Contains("does not exist"));
    options = options_for(starved(), drive.path());
    options.chunk_bytes = 1000;
    CHECK_THROWS_AS(TensorOptimizer(parameters_of(model), adam_groups(), options),
                    std::invalid_argument);
    options = options_for(starved(), drive.path());
    CHECK_THROWS_WITH(TensorOptimizer(parameters_of(model), {}, options), Catch::Contains("group"));
    auto parameters = parameters_of(model);
    parameters[0].data = nullptr;
    CHECK_THROWS_WITH(TensorOptimizer(parameters, adam_groups(), options),
                      Catch::Contains("'embedding'"));
    parameters = parameters_of(model);
    parameters[0].group = 2;
    CHECK_THROWS_WITH(TensorOptimizer(parameters, adam_groups(), options),
                      Catch::Contains("group 2"));
}

TEST_CASE("room is judged as the constructor judges it, and nothing is made",
          "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    auto parameters = parameters_of(model);
    for (auto& parameter : parameters)
        parameter.data = nullptr;  // there may be no values yet
    const auto check = [&](const TensorOptimizerOptions& options) {
        TensorOptimizer::check_room(parameters, adam_groups(), options);
    };
    auto options = options_for(starved(), drive.path());
    CHECK_NOTHROW(check(options));
    CHECK(std::filesystem::is_empty(drive.path()));
    const auto text_of = [](const auto& refused) -> std::string {
        try {
            refused();
        } catch (const PlanRefused& error) {
            return error.what();
        }
        return "not refused";
    };
    options.host_bytes = std::size_t{1} << 20;
    CHECK(text_of([&] { check(options); }) ==
          text_of([&] { TensorOptimizer(parameters_of(model), adam_groups(), options); }));
    CHECK(text_of([&] { check(options); }) != "not refused");
    options = options_for(starved(), drive.path());
    parameters.front().shape = {std::uint64_t{1} << 40};
    options.host_bytes = std::size_t{1} << 36;
    CHECK(text_of([&] { check(options); }).find("disk " + drive.path().string()) == 0);
    CHECK_THROWS_AS(TensorOptimizer::check_room(parameters, {}, options), std::invalid_argument);
}

TEST_CASE("an optimizer closed in the middle of a streamed step ends", "[tensor_optimizer]") {
    const TemporaryFolder drive;
    auto model = client_model();
    TensorOptimizer optimizer(parameters_of(model), adam_groups(),
                              options_for(starved(), drive.path()));
    optimizer.begin_streamed_step(1.0);
}

TEST_CASE("planes that an update reads side by side lie no large power of two apart") {
    constexpr std::uint64_t elements = std::uint64_t{1} << 22;  // a plane of 16 MiB
    std::vector<float> values(elements);
    TensorOptimizerOptions options;
    options.host_bytes = std::size_t{128} << 20;
    const TensorId tensor = 0;
    TensorOptimizer optimizer({{"w", {elements}, ParameterType::fp32, 0, values.data()}},
                              {AdamHyperParameters{.amsgrad = cpu_optim::Amsgrad::on}}, options);
    std::vector<std::ptrdiff_t> addresses;
    for (std::size_t plane = 0; plane < optimizer.state_planes(); ++plane)
        addresses.push_back(optimizer.state_view(tensor, plane).data() -
                            optimizer.state_view(tensor, 0).data());
    REQUIRE(addresses.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            const auto apart_bytes = static_cast<std::size_t>(addresses[i] - addresses[j]) * 4;
            CHECK(apart_bytes % 4096 == 0);
            CHECK(apart_bytes % (std::size_t{64} << 10) != 0);
        }
    }
}
