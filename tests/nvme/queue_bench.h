// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "nvme/huge_page_arena.h"
#include "nvme/io_queue.h"
#include "tests/support/fake_backend.h"
#include "tests/support/temporary_folder.h"

namespace spillway::nvme::testing {

inline constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// A queue on a scripted backend, with a file and memory to use it on.
struct Bench {
    explicit Bench(spillway::testing::FakeScript script = {}, IoQueue::Options options = {},
                   DirectMode direct = DirectMode::automatic)
        : file(folder.path() / "data", OpenMode::create_or_open, direct),
          queue(std::make_unique<spillway::testing::FakeBackend>(std::move(script), log), options) {
    }

    std::span<std::byte> memory(std::size_t bytes) { return arena.bytes().first(bytes); }
    IoResult write(std::size_t bytes, std::uint64_t offset = 0) {
        return queue.submit(IoRequest::make_write(file, offset, memory(bytes))).wait();
    }
    IoResult read(std::size_t bytes, std::uint64_t offset = 0) {
        return queue.submit(IoRequest::make_read(file, offset, memory(bytes))).wait();
    }

    spillway::testing::TemporaryFolder folder;
    DirectFile file;
    HugePageArena arena{8 * mebibyte};
    std::shared_ptr<spillway::testing::FakeLog> log =
        std::make_shared<spillway::testing::FakeLog>();
    IoQueue queue;
};

}  // namespace spillway::nvme::testing
