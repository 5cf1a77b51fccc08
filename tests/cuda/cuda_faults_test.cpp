// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// Faults planted in the use of a CUDA device, or in the driver: each is seen by the look-alike, or
// comes out as an error that names it.
#include <latch>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/driver.h"
#include "cuda/host_mapping.h"
#include "cuda/kernel_stream.h"
#include "cuda/optimizer_kernels.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace standin = spillway::standin;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t floats = 1024;
enum class Planted { no, yes };

auto with_and_without() {
    return GENERATE(Planted::no, Planted::yes);
}

std::size_t violations_about(const std::string& words) {
    std::size_t count = 0;
    for (const auto& violation : standin::violations())
        count += violation.find(words) != std::string::npos ? 1U : 0U;
    return count;
}

template <typename T>
auto bytes_of(T* data) {
    return reinterpret_cast<std::byte*>(data);
}

}  // namespace

TEST_CASE("planted: a copy to the host is consumed before its event") {
    const auto planted = with_and_without();
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto stream = device->create_stream("down");
    // A copy that is known to be over when the host reads would be in order.
    std::latch go(1);
    stream->launch("hold", [&] { go.wait(); });
    stream->copy_to_host(bytes_of(host.data()), buffer.data(), page_bytes);
    const Event copied = stream->record();
    if (planted == Planted::no) {
        go.count_down();
        copied.wait();
    }
    standin::host_reads(host.data(), page_bytes);
    if (planted == Planted::yes)
        go.count_down();
    CHECK(standin::violations().size() == (planted == Planted::yes ? 1 : 0));
    CHECK(violations_about("the host reads memory that a copy to the host") ==
          (planted == Planted::yes ? 1 : 0));
    stream->synchronize();
}

TEST_CASE("planted: the host writes what a copy to the device has not read yet") {
    const auto planted = with_and_without();
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto stream = device->create_stream("up");
    stream->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    if (planted == Planted::no)
        stream->synchronize();
    standin::host_writes(host.data(), 4);
    CHECK(standin::violations().size() == (planted == Planted::yes ? 1 : 0));
    stream->synchronize();
}

TEST_CASE("planted: a kernel does not wait for the copy that feeds it") {
    const auto planted = with_and_without();
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(2 * page_bytes);
    std::vector<float> host(floats);
    const auto up = device->create_stream("up");
    const auto compute = device->create_stream("compute");
    // A copy that is over before the kernel is queued, and known to be, would be in order.
    std::latch kernel_is_queued(1);
    up->launch("hold", [&] { kernel_is_queued.wait(); });
    up->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    const Event copied = up->record();
    if (planted == Planted::no)
        compute->wait(copied);
    add_gradient(*compute->kernels(), buffer.as<float>() + floats, buffer.as<float>(), floats);
    kernel_is_queued.count_down();
    compute->synchronize();
    up->synchronize();
    CHECK(violations_about("kernel 'spillway_add_gradient'") == (planted == Planted::yes ? 1 : 0));
}

TEST_CASE("planted: a slot is filled again while a kernel still reads it") {
    const auto planted = with_and_without();
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(2 * page_bytes);
    std::vector<float> host(floats);
    const auto up = device->create_stream("up");
    const auto compute = device->create_stream("compute");
    up->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    compute->wait(up->record());
    add_gradient(*compute->kernels(), buffer.as<float>() + floats, buffer.as<float>(), floats);
    if (planted == Planted::no)
        up->wait(compute->record());
    up->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    up->synchronize();
    compute->synchronize();
    CHECK(violations_about("a copy to the device on stream") == (planted == Planted::yes ? 1 : 0));
}

TEST_CASE("planted: a buffer is freed in flight") {
    const auto planted = with_and_without();
    standin::Settings settings;
    settings.max_delay_s = 2e-3;
    const auto device = make_standin_device(mib, settings);
    DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto stream = device->create_stream("up");
    stream->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    if (planted == Planted::no)
        stream->synchronize();
    buffer = DeviceBuffer();
    CHECK(violations_about("was freed in flight") == (planted == Planted::yes ? 1 : 0));
}

TEST_CASE("planted: page-locked memory is unlocked in flight") {
    const auto planted = with_and_without();
    const auto device = make_standin_device(mib);
    const HostMapping host(page_bytes);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    const auto stream = device->create_stream("up");
    {
        const auto locked = device->register_host(host.data(), page_bytes);
        stream->copy_to_device(buffer.data(), host.data(), page_bytes);
        if (planted == Planted::no)
            stream->synchronize();
    }
    CHECK(violations_about("unlocked in flight") == (planted == Planted::yes ? 1 : 0));
    stream->synchronize();
}

TEST_CASE("page-locking that fails at piece k undoes the pieces before and names it") {
    standin::Settings settings;
    settings.page_lock_limit_bytes = 7 * page_bytes;
    standin::reset(settings);
    auto options = standin_options(mib);
    options.registration_piece_bytes = 2 * page_bytes;
    const auto device = make_cuda_device(options);
    const HostMapping host(10 * page_bytes);
    CHECK_THROWS_WITH(device->register_host(host.data(), host.size_bytes()),
                      Catch::Contains("piece 4 of 5") && Catch::Contains("offset 24576") &&
                          Catch::Contains("CUDA_ERROR_OUT_OF_MEMORY") &&
                          Catch::Contains("memlock"));
    CHECK(standin::counts().registrations == 0);
    // The failure is not a lasting one, and copies know of no edges any more.
    const auto locked = device->register_host(host.data(), 4 * page_bytes);
    CHECK(standin::counts().page_locked_bytes == 4 * page_bytes);

    const int k = GENERATE(1, 2);
    standin::fail_call("cuMemHostRegister", k, driver::invalid_value);
    const HostMapping other(3 * page_bytes);
    CHECK_THROWS_WITH(device->register_host(other.data(), other.size_bytes()),
                      Catch::Contains("piece " + std::to_string(k) + " of 2"));
    CHECK(standin::counts().page_locked_bytes == 4 * page_bytes);
}

TEST_CASE("an error of the device surfaces later, with its name, and stays") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    const auto stream = device->create_stream("failing");
    const auto other = device->create_stream("other");
    standin::fail_in_stream("spillway_add_gradient", 2, driver::illegal_address);
    add_gradient(*stream->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 512);
    CHECK_NOTHROW(stream->synchronize());
    add_gradient(*stream->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 512);
    const auto names_it =
        Catch::Contains("CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access");
    CHECK_THROWS_WITH(stream->synchronize(), names_it && Catch::Contains("'failing'") &&
                                                 Catch::Contains("start the process again"));
    // The context is gone: every later call says so, and where it showed first.
    CHECK_THROWS_WITH(other->record(), names_it && Catch::Contains("was lost before") &&
                                           Catch::Contains("'failing'"));
    CHECK_THROWS_WITH(device->allocate(page_bytes), names_it);
    CHECK_THROWS_WITH(device->create_stream("new"), names_it);
    CHECK(standin::violations().empty());
}

TEST_CASE("an event tells of a lost context instead of waiting for ever") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto stream = device->create_stream("failing");
    standin::fail_in_stream("copy", 1, driver::launch_failed);
    std::latch event_is_recorded(1);  // which a context that is lost already would refuse
    stream->launch("hold", [&] { event_is_recorded.wait(); });
    stream->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    const Event event = stream->record();
    event_is_recorded.count_down();
    CHECK_THROWS_AS(event.wait(), DriverError);
    CHECK(event.done());
}

TEST_CASE("a call that fails at its k-th time is thrown with its name, and the device goes on") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto stream = device->create_stream("work");
    const auto up = [&] {
        stream->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    };
    standin::fail_call("cuMemcpyHtoDAsync", 2, driver::invalid_value);
    CHECK_NOTHROW(up());
    CHECK_THROWS_WITH(up(), Catch::Contains("cuMemcpyHtoDAsync failed with "
                                            "CUDA_ERROR_INVALID_VALUE") &&
                                Catch::Contains("'work'"));
    CHECK_NOTHROW(up());
    standin::fail_call("cuLaunchKernel", 1, 701);
    CHECK_THROWS_AS(
        add_gradient(*stream->kernels(), buffer.as<float>(), buffer.as<float>() + 512, 512),
        DriverError);
    standin::fail_call("cuMemAlloc", 1, driver::out_of_memory);
    try {
        const auto more = device->allocate(page_bytes);
        FAIL("allocated what the driver had not");
    } catch (const OutOfDeviceMemory& error) {
        CHECK(error.asked_bytes == page_bytes);
    }
    CHECK(device->free_bytes() == mib - page_bytes);
    standin::fail_call("cuLaunchHostFunc", 1, driver::invalid_value);
    CHECK_THROWS_AS(stream->launch("never", [] {}), DriverError);
    standin::fail_call("cuEventRecord", 1, driver::invalid_value);
    CHECK_THROWS_AS(stream->record(), DriverError);
    CHECK_NOTHROW(stream->synchronize());
    CHECK(standin::violations().empty());
}

TEST_CASE("what comes behind a failed host function is not handed out as good") {
    const auto device = make_standin_device(mib);
    const DeviceBuffer buffer = device->allocate(page_bytes);
    std::vector<float> host(floats);
    const auto failing = device->create_stream("failing");
    const auto behind = device->create_stream("behind");
    const Event before = failing->record();
    failing->launch("bad", [] { throw std::domain_error("it failed"); });
    const Event after = failing->record();
    behind->wait(after);
    behind->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    CHECK_NOTHROW(before.wait());
    CHECK_THROWS_WITH(after.wait(), "it failed");
    CHECK_THROWS_WITH(behind->record().wait(), "it failed");
    // Now the failure is known: no more is queued.
    const auto copies = standin::counts().copies;
    behind->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    failing->copy_to_device(buffer.data(), bytes_of(host.data()), page_bytes);
    CHECK(standin::counts().copies == copies);
    CHECK_THROWS_WITH(behind->synchronize(), "it failed");
}
