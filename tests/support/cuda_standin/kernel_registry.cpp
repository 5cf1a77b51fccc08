// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/kernel_registry.h"

// The build includes device_code.h before everything: what follows is written for nvcc.
#include "cuda/kernels/kernels.cu"

namespace spillway::standin {
namespace {

class CollectUses {
  public:
    template <typename T>
    void reads(const char*, const T*& data, std::size_t elements) {
        add(data, elements * sizeof(T), OrderChecker::Access::reads);
    }
    template <typename T>
    void writes(const char*, T*& data, std::size_t elements) {
        add(data, elements * sizeof(T), OrderChecker::Access::writes);
    }
    std::vector<OrderChecker::Use> uses;

  private:
    void add(const void* data, std::size_t bytes, OrderChecker::Access access) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (data != nullptr && bytes != 0)
            uses.push_back({begin, begin + bytes, access});
    }
};

class Translate {
  public:
    explicit Translate(const Translation& translation) : translation_(translation) {}
    template <typename T>
    void reads(const char*, const T*& data, std::size_t elements) {
        if (data != nullptr && elements != 0)
            data = reinterpret_cast<const T*>(translation_(data, elements * sizeof(T)));
    }
    template <typename T>
    void writes(const char*, T*& data, std::size_t elements) {
        if (data != nullptr && elements != 0)
            data = reinterpret_cast<T*>(translation_(data, elements * sizeof(T)));
    }

  private:
    const Translation& translation_;
};

using Registry = std::map<std::string, EmulatedKernel>;

template <typename Parameters>
void add(Registry& registry, void (*kernel)(Parameters), Threads threads) {
    const std::string name = Parameters::kernel;
    registry[name] = {
        .copied =
            [](const void* from) {
                return std::make_shared<Parameters>(*static_cast<const Parameters*>(from));
            },
        .uses =
            [](const void* from) {
                Parameters parameters = *static_cast<const Parameters*>(from);
                CollectUses collect;
                parameters.for_each_memory(collect);
                return collect.uses;
            },
        .run =
            [kernel, threads, name](void* from, Grid grid, const Translation& translation) {
                auto& parameters = *static_cast<Parameters*>(from);
                Translate translate(translation);
                parameters.for_each_memory(translate);
                grid.kind = threads;
                run_grid(name, grid, [&] { kernel(parameters); });
            }};
}

Registry make_registry() {
    Registry registry;
    add(registry, &spillway_update_adam, Threads::independent);
    add(registry, &spillway_update_sgd, Threads::independent);
    add(registry, &spillway_update_adagrad, Threads::independent);
    add(registry, &spillway_update_lion, Threads::independent);
    add(registry, &spillway_update_rmsprop, Threads::independent);
    add(registry, &spillway_update_adam_bf16, Threads::independent);
    add(registry, &spillway_update_adam_int8, Threads::cooperating);
    add(registry, &spillway_update_sgd_bf16, Threads::independent);
    add(registry, &spillway_update_sgd_int8, Threads::cooperating);
    add(registry, &spillway_update_adagrad_bf16, Threads::independent);
    add(registry, &spillway_update_adagrad_int8, Threads::cooperating);
    add(registry, &spillway_update_lion_bf16, Threads::independent);
    add(registry, &spillway_update_lion_int8, Threads::cooperating);
    add(registry, &spillway_update_rmsprop_bf16, Threads::independent);
    add(registry, &spillway_update_rmsprop_int8, Threads::cooperating);
    add(registry, &spillway_update_average, Threads::independent);
    add(registry, &spillway_scan_gradient, Threads::cooperating);
    add(registry, &spillway_add_gradient, Threads::independent);
    add(registry, &spillway_widen_gradient, Threads::independent);
    add(registry, &spillway_join_master, Threads::independent);
    add(registry, &spillway_split_master, Threads::independent);
    add(registry, &spillway_join_tiles, Threads::cooperating);
    add(registry, &spillway_embed, Threads::independent);
    add(registry, &spillway_token_table_gradient, Threads::cooperating);
    add(registry, &spillway_position_table_gradient, Threads::independent);
    add(registry, &spillway_layer_norm, Threads::cooperating);
    add(registry, &spillway_layer_norm_input_gradient, Threads::cooperating);
    add(registry, &spillway_column_gradients, Threads::independent);
    add(registry, &spillway_product, Threads::cooperating);
    add(registry, &spillway_bias_epilogue, Threads::independent);
    add(registry, &spillway_gelu_backward, Threads::independent);
    add(registry, &spillway_cross_entropy, Threads::cooperating);
    add(registry, &spillway_mean_loss, Threads::independent);
    add(registry, &spillway_attention, Threads::cooperating);
    add(registry, &spillway_attention_query_gradient, Threads::cooperating);
    add(registry, &spillway_attention_key_gradients, Threads::cooperating);
    return registry;
}

}  // namespace

const std::map<std::string, EmulatedKernel>& kernel_registry() {
    static const Registry registry = make_registry();
    return registry;
}

}  // namespace spillway::standin
