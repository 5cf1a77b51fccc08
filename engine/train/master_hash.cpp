// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "engine/train/master_hash.h"

#include <bit>
#include <new>

#include <xxhash.h>

namespace spillway::engine {

static_assert(std::endian::native == std::endian::little, "the hash is defined on such bytes");

struct MasterHash::State {
    XXH3_state_t* xxh3 = XXH3_createState();
    State() {
        if (xxh3 == nullptr)
            throw std::bad_alloc();
        XXH3_64bits_reset(xxh3);
    }
    ~State() { XXH3_freeState(xxh3); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
};

MasterHash::MasterHash() : state_(std::make_unique<State>()) {}
MasterHash::~MasterHash() = default;

void MasterHash::add(std::span<const float> values) {
    XXH3_64bits_update(state_->xxh3, values.data(), values.size_bytes());
}

std::uint64_t MasterHash::digest() const {
    return XXH3_64bits_digest(state_->xxh3);
}

}  // namespace spillway::engine
