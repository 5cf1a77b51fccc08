// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/device.h"
#include "offload/offload_engine.h"

namespace spillway::testing {

/// Fits of a run; every combination must give the same weights.
struct SyntheticPlacement {
    std::string device = "cpu";
    std::size_t host_bytes = std::size_t{1} << 30;
    std::size_t device_bytes = std::size_t{64} << 20;
    bool nvme = true;
    std::size_t chunk_bytes = 0;
    offload::Windows windows = {};
    std::size_t threads = 1;
    cpu_optim::Isa isa = cpu_optim::best_isa();
    nvme::BackendKind backend = nvme::BackendKind::automatic;
    offload::UpdateTiming timing = offload::UpdateTiming::after_norm;
    offload::Durability durability = offload::Durability::on;
    std::uint64_t commit_every = 0;
    std::function<std::unique_ptr<nvme::IoBackend>(std::size_t depth)> backend_factory;
    /// Of an input that each unit but the last two has, which waits on the drive for its backward;
    /// 0: none has one.
    std::size_t input_bytes = 0;
};

/// A client that is no model: tensors of awkward sizes in units, a "forward" that reads the weights
/// and a "backward" whose gradient depends on every weight and on the iteration. It has a tied
/// tensor.
struct SyntheticModel {
    std::vector<offload::TensorSpec> tensors;
    std::vector<offload::Unit> units;
    std::vector<std::size_t> uses;
    std::vector<std::size_t> gradient_uses;
    std::size_t tied_unit = 0;
};
[[nodiscard]] SyntheticModel synthetic_model(int blocks = 12);
/// The same, with matrices among the tensors.
[[nodiscard]] SyntheticModel matrix_model_of(SyntheticModel model);

/// Which inputs leave the device.
[[nodiscard]] offload::ActivationLayout synthetic_inputs(const SyntheticModel& model,
                                                         std::size_t input_bytes);

[[nodiscard]] float synthetic_initial(offload::TensorId tensor, std::uint64_t element);
/// The gradient's contribution `index` of one element.
[[nodiscard]] float synthetic_gradient(float weight, offload::TensorId tensor,
                                       std::uint64_t element, std::uint64_t iteration,
                                       unsigned index);

/// Hyper-parameters of the model's two groups.
using SyntheticGroups = std::array<cpu_optim::HyperParameters, 2>;
[[nodiscard]] SyntheticGroups synthetic_adamw();
using SyntheticLayerwiseGroups = std::array<cpu_optim::LayerwiseHyperParameters, 2>;
using SyntheticAdafactorGroups = std::array<cpu_optim::AdafactorHyperParameters, 2>;

/// What is done to a step's gradients.
struct SyntheticClip {
    SyntheticClip(double of_all = 0.05) : norm(of_all) {}
    double norm;                       ///< of all, at most; 0: any
    std::optional<float> value = {};   ///< in place of it: the most of each value
    std::optional<double> layer = {};  ///< in place of it: the most of each tensor's norm
};

/// How a run leaves what it trained.
enum class SyntheticEnd {
    committed,  ///< with a commit
    abandoned,  ///< in the middle: what follows the last commit is lost
};

/// Trains until `steps` iterations are done in all, resuming what is in `out` if a commit is there.
struct SyntheticRun {
    SyntheticModel model = synthetic_model();
    std::filesystem::path out;
    std::filesystem::path nvme;
    std::vector<std::filesystem::path> more_nvme = {};  ///< further drives
    std::function<std::vector<double>()> drive_rates = {};
    std::uint64_t steps = 0;
    SyntheticPlacement placement;
    SyntheticClip clip;
    /// Passes that only read the weights, before each step.
    std::uint64_t reading_passes = 0;
    /// Iterations whose gradient has a NaN.
    std::vector<std::uint64_t> nonfinite_iterations;
    SyntheticGroups groups = synthetic_adamw();
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32;
    std::optional<offload::AverageRule> average = {};
    /// If set, of an optimizer of whole tensors in place of `groups`.
    std::optional<SyntheticLayerwiseGroups> layerwise = {};
    std::optional<SyntheticAdafactorGroups> adafactor = {};  ///< or of this one
    SyntheticEnd end = SyntheticEnd::committed;
    /// Called with the number of steps done.
    std::function<void(std::uint64_t steps)> after_step = {};
};
/// What run_synthetic() asks of the planner.
[[nodiscard]] offload::PlanRequest synthetic_request(const SyntheticRun& run,
                                                     cuda::MemoryKind device);
/// Of lossy state.
inline constexpr std::uint64_t synthetic_rounding_seed = 11;
struct SyntheticOutcome {
    std::vector<float> masters;        ///< tensor by tensor
    std::vector<float> averages;       ///< as stored; empty: there are none
    std::vector<float> averages_read;  ///< as a pass over the units finds them on the device
    offload::OffloadStatistics statistics;
    offload::OffloadPlan plan;
    std::uint64_t updates = 0;
    std::optional<std::uint64_t> resumed_from;
    std::vector<double> norms;
    std::uint64_t wrong_inputs = 0;  ///< that were not what they had been
};
[[nodiscard]] SyntheticOutcome run_synthetic(const SyntheticRun& run);

/// The same training as a plain loop over arrays with the scalar reference.
[[nodiscard]] std::vector<float> reference_synthetic(
    std::uint64_t steps, const SyntheticClip& clip,
    const std::vector<std::uint64_t>& nonfinite_iterations = {},
    const SyntheticGroups& groups = synthetic_adamw(),
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32);
/// The same with an optimizer of whole tensors, element by element as its paper reads.
[[nodiscard]] std::vector<float> reference_synthetic(
    std::uint64_t steps, const SyntheticClip& clip, const SyntheticLayerwiseGroups& groups,
    cpu_optim::StateFormat state = cpu_optim::StateFormat::fp32);
/// Of matrix_model_of(synthetic_model()).
[[nodiscard]] std::vector<float> reference_synthetic(std::uint64_t steps, const SyntheticClip& clip,
                                                     const SyntheticAdafactorGroups& groups);

}  // namespace spillway::testing
