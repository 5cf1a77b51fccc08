// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/support/cuda_standin/emulator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>

// Goes on where `to` was left, and leaves the present place in `from`. Fibres change place millions
// of times: swapcontext() would ask the kernel for the signal mask each time.
extern "C" void spillway_switch_stack(void** from, void* to);
asm(R"(
    .text
    .type spillway_switch_stack, @function
spillway_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size spillway_switch_stack, . - spillway_switch_stack
)");

namespace spillway::standin {
namespace {

constexpr std::size_t stack_bytes = std::size_t{64} << 10;
constexpr std::size_t largest_value_bytes = 16;

enum class State { ready, at_barrier, in_warp, ended };

struct Fibre {
    std::unique_ptr<std::byte[]> stack;
    void* place = nullptr;  ///< where it goes on
    State state = State::ready;
    std::uint32_t mask = 0;  ///< of the lanes it waits for
    unsigned from = 0;
    std::size_t value_bytes = 0;
    std::array<std::byte, largest_value_bytes> given{}, taken{};
    bool vote = false;
    Index index;
};

/// The block that this thread of the host executes.
class Block {
  public:
    Block(const std::string& kernel, const Grid& grid, const std::function<void()>& thread)
        : kernel_(kernel),
          thread_(thread),
          kind_(grid.kind),
          shared_(grid.shared_bytes),
          fibres_(grid.threads) {
        dimension.x = grid.threads;
        dimension.y = dimension.z = 1;
        grid_dimension.x = grid.blocks;
        grid_dimension.y = grid_dimension.z = 1;
        for (unsigned i = 0; i < grid.threads; ++i)
            fibres_[i].index.x = i;
    }

    void run(unsigned block);
    void wait_in(State state);

    [[nodiscard]] bool vote(bool own);

    [[nodiscard]] Fibre& running() { return *running_; }
    [[nodiscard]] std::byte* shared() { return shared_.data(); }

    Index index, dimension, grid_dimension;

  private:
    static void enter();
    void run_in_turn();
    void run_fibres();
    void prepare(Fibre& fibre);
    [[nodiscard]] bool release_barrier();
    [[nodiscard]] bool release_warps();
    void exchange(std::size_t warp, std::uint32_t mask);

    const std::string& kernel_;
    const std::function<void()>& thread_;
    const Threads kind_;
    std::vector<std::byte> shared_;
    std::vector<Fibre> fibres_;
    Fibre* running_ = nullptr;
    void* scheduler_place_ = nullptr;
};

thread_local Block* current_block = nullptr;

void Block::enter() {
    Block& block = *current_block;
    block.thread_();
    block.wait_in(State::ended);
}

void Block::prepare(Fibre& fibre) {
    if (fibre.stack == nullptr)
        fibre.stack = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    // As if enter() had been called and had left itself behind at once: six registers, where it
    // begins, and a place to return to that it never uses, which a multiple of 16 ends.
    const auto end = reinterpret_cast<std::uintptr_t>(fibre.stack.get() + stack_bytes) / 16 * 16;
    auto* const top = reinterpret_cast<std::uintptr_t*>(end) - 8;
    std::fill(top, top + 8, std::uintptr_t{0});
    top[6] = reinterpret_cast<std::uintptr_t>(&Block::enter);
    fibre.place = top;
    fibre.state = State::ready;
}

void Block::wait_in(State state) {
    if (kind_ == Threads::independent)
        throw std::runtime_error(
            fmt::format("kernel '{}': its threads are said to be independent, but wait for each "
                        "other",
                        kernel_));
    running_->state = state;
    spillway_switch_stack(&running_->place, scheduler_place_);
}

bool Block::vote(bool own) {
    running_->vote = own;
    wait_in(State::at_barrier);
    bool any = false;
    for (const Fibre& fibre : fibres_)
        any = any || (fibre.state != State::ended && fibre.vote);
    // Nobody votes again before everybody has counted.
    wait_in(State::at_barrier);
    return any;
}

void Block::run(unsigned block) {
    index.x = block;
    // What a block before left there would hide that nothing was written.
    if (!shared_.empty())
        std::memset(shared_.data(), 0xDB, shared_.size());
    if (kind_ == Threads::independent)
        run_in_turn();
    else
        run_fibres();
}

void Block::run_in_turn() {
    for (Fibre& fibre : fibres_) {
        running_ = &fibre;
        thread_();
    }
}

void Block::run_fibres() {
    for (Fibre& fibre : fibres_)
        prepare(fibre);
    bool goes_on = true;
    while (goes_on) {
        for (Fibre& fibre : fibres_) {
            if (fibre.state != State::ready)
                continue;
            running_ = &fibre;
            spillway_switch_stack(&scheduler_place_, fibre.place);
        }
        goes_on = release_warps() || release_barrier();
    }
    for (const Fibre& fibre : fibres_)
        if (fibre.state != State::ended)
            throw std::runtime_error(
                fmt::format("kernel '{}': thread {} of block {} waits for ever: not all threads of "
                            "its {} come to where it waits",
                            kernel_, fibre.index.x, index.x,
                            fibre.state == State::in_warp ? "warp's mask" : "block"));
}

bool Block::release_barrier() {
    bool any = false;
    for (const Fibre& fibre : fibres_) {
        if (fibre.state == State::in_warp)
            return false;
        any = any || fibre.state == State::at_barrier;
    }
    for (Fibre& fibre : fibres_)
        if (fibre.state == State::at_barrier)
            fibre.state = State::ready;
    return any;
}

bool Block::release_warps() {
    bool any = false;
    for (std::size_t i = 0; i < fibres_.size(); ++i) {
        if (fibres_[i].state != State::in_warp)
            continue;
        const std::size_t warp = i / warp_lanes * warp_lanes;
        const std::uint32_t mask = fibres_[i].mask;
        bool all = true;
        for (unsigned lane = 0; lane < warp_lanes; ++lane)
            if ((mask >> lane & 1u) != 0)
                all = all && warp + lane < fibres_.size() &&
                      fibres_[warp + lane].state == State::in_warp &&
                      fibres_[warp + lane].mask == mask;
        if (all) {
            exchange(warp, mask);
            any = true;
        }
    }
    return any;
}

void Block::exchange(std::size_t warp, std::uint32_t mask) {
    for (unsigned lane = 0; lane < warp_lanes; ++lane) {
        if ((mask >> lane & 1u) == 0)
            continue;
        Fibre& to = fibres_[warp + lane];
        // Of a lane that takes no part the hardware gives an undefined value: poison.
        if ((mask >> to.from & 1u) != 0)
            to.taken = fibres_[warp + to.from].given;
        else
            to.taken.fill(std::byte{0xDB});
    }
    for (unsigned lane = 0; lane < warp_lanes; ++lane)
        if ((mask >> lane & 1u) != 0)
            fibres_[warp + lane].state = State::ready;
}

}  // namespace

void run_grid(const std::string& kernel, const Grid& grid, const std::function<void()>& thread) {
    Block block(kernel, grid, thread);
    current_block = &block;
    for (unsigned i = 0; i < grid.blocks; ++i)
        block.run(i);
    current_block = nullptr;
}

const Index& thread_index() {
    return current_block->running().index;
}
const Index& block_index() {
    return current_block->index;
}
const Index& block_dimension() {
    return current_block->dimension;
}
const Index& grid_dimension() {
    return current_block->grid_dimension;
}
std::byte* shared_memory() {
    return current_block->shared();
}
void block_barrier() {
    current_block->wait_in(State::at_barrier);
}

bool block_vote(bool vote) {
    return current_block->vote(vote);
}

void exchange_in_warp(std::uint32_t mask, void* value, std::size_t bytes, unsigned from) {
    Fibre& fibre = current_block->running();
    std::memcpy(fibre.given.data(), value, bytes);
    fibre.mask = mask;
    fibre.from = from;
    current_block->wait_in(State::in_warp);
    std::memcpy(value, fibre.taken.data(), bytes);
}

}  // namespace spillway::standin
