// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/step_passes.h"

#include "engine/train/offload_parameter_stream.h"
#include "offload/device_group.h"

namespace spillway::engine {
namespace {

class OneDevicePasses final : public StepPasses {
  public:
    OneDevicePasses(const PlannedRun& run, const RunMachine& machine,
                    offload::OffloadEngine& engine)
        : engine_(engine),
          parameters_(engine),
          inputs_(engine.open_activations(*machine.device, *machine.compute)),
          step_(*machine.device, *machine.compute, *machine.pool, run.layout.config, run.plan.shape,
                engine.compute_row(), inputs_.get()) {}

    void begin(const std::vector<std::size_t>& uses, offload::WeightKind kind) override {
        engine_.begin_pass(uses, kind);
    }
    double train(std::span<const std::int32_t> tokens) override {
        return step_.train(parameters_, tokens);
    }
    double evaluate(std::span<const std::int32_t> tokens) override {
        return step_.evaluate(parameters_, tokens);
    }
    PassTimes times() const noexcept override { return step_.times(); }

  private:
    offload::OffloadEngine& engine_;
    OffloadParameterStream parameters_;
    std::unique_ptr<offload::ActivationStore> inputs_;  ///< null: none leave the device
    Gpt2Step step_;
};

/// One rank's side of a group.
class GroupParameterStream final : public ParameterStream {
  public:
    GroupParameterStream(offload::DeviceGroup& group, unsigned rank) noexcept
        : group_(group), rank_(rank) {}

    const float* acquire_weights(std::size_t unit) override {
        return group_.acquire_weights(rank_, unit);
    }
    void release_weights(std::size_t unit) override { group_.release_weights(rank_, unit); }
    float* acquire_gradient(std::size_t unit) override {
        return group_.acquire_gradient(rank_, unit);
    }
    void release_gradient(std::size_t unit) override { group_.release_gradient(rank_, unit); }
    /// Sequences of the ranks before this one come first.
    Contribution first_contribution() const noexcept override {
        return rank_ == 0 ? Contribution::first : Contribution::further;
    }

  private:
    offload::DeviceGroup& group_;
    unsigned rank_;
};

class GroupPasses final : public StepPasses {
  public:
    GroupPasses(const PlannedRun& run, const RunMachine& machine, offload::OffloadEngine& engine)
        : group_(engine, run.layout.order, run.layout.units, *run.plan.group, machine.members(),
                 {}),
          losses_(run.plan.group->ranks) {
        for (const auto& member : machine.members()) {
            const auto rank = static_cast<unsigned>(steps_.size());
            parameters_.emplace_back(group_, rank);
            inputs_.push_back(engine.open_activations(member.device, member.compute, rank));
            steps_.push_back(std::make_unique<Gpt2Step>(
                member.device, member.compute, *machine.pool, run.layout.config, run.plan.shape,
                engine.compute_row(rank), inputs_.back().get()));
        }
    }

    void begin(const std::vector<std::size_t>& uses, offload::WeightKind kind) override {
        group_.begin_pass(uses, kind);
    }
    double train(std::span<const std::int32_t> tokens) override {
        return mean_over_ranks(tokens, &Gpt2Step::train);
    }
    double evaluate(std::span<const std::int32_t> tokens) override {
        return mean_over_ranks(tokens, &Gpt2Step::evaluate);
    }
    PassTimes times() const noexcept override { return steps_.front()->times(); }

  private:
    using Pass = double (Gpt2Step::*)(ParameterStream&, std::span<const std::int32_t>);

    double mean_over_ranks(std::span<const std::int32_t> tokens, Pass pass) {
        const auto share = tokens.size() / steps_.size();
        group_.run_pass([&](unsigned rank) {
            losses_[rank] =
                (*steps_[rank].*pass)(parameters_[rank], tokens.subspan(rank * share, share));
        });
        double sum = 0;
        for (const double loss : losses_)
            sum += loss;
        return sum / static_cast<double>(losses_.size());
    }

    offload::DeviceGroup group_;
    std::vector<GroupParameterStream> parameters_;
    std::vector<std::unique_ptr<offload::ActivationStore>> inputs_;  ///< null: none leave
    std::vector<std::unique_ptr<Gpt2Step>> steps_;
    std::vector<double> losses_;  ///< by rank
};

}  // namespace

std::unique_ptr<StepPasses> make_passes(const PlannedRun& run, const RunMachine& machine,
                                        offload::OffloadEngine& engine) {
    if (run.plan.group)
        return std::make_unique<GroupPasses>(run, machine, engine);
    return std::make_unique<OneDevicePasses>(run, machine, engine);
}

}  // namespace spillway::engine
