// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/driver.h"

#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "cuda/kernel_image.h"
#include "cuda/kernel_names.h"
#include "tests/cuda/standin_device.h"

using namespace spillway::cuda;
namespace standin = spillway::standin;

TEST_CASE("a driver that is not there is refused with the loader's reason and what to do") {
    CHECK_THROWS_AS(Driver::load("/nowhere/libcuda.so.1"), DriverUnavailable);
    CHECK_THROWS_WITH(
        Driver::load("/nowhere/libcuda.so.1"),
        Catch::Contains("/nowhere/libcuda.so.1") && Catch::Contains("install the NVIDIA driver"));
}

TEST_CASE("a library that is no driver is refused with the function it lacks") {
    CHECK_THROWS_WITH(Driver::load("libm.so.6"),
                      Catch::Contains("'libm.so.6'") && Catch::Contains("'cuInit'"));
}

TEST_CASE("a driver that does not start is refused in its own words") {
    standin::reset({});
    standin::fail_call("cuInit", 1, 100);
    CHECK_THROWS_WITH(Driver::load(SPILLWAY_CUDA_STANDIN),
                      Catch::Contains("CUDA_ERROR_NO_DEVICE (100)") &&
                          Catch::Contains("no CUDA-capable device is detected"));
}

TEST_CASE("errors are described by the driver, those it does not know by their number") {
    standin::reset({});
    const auto driver = Driver::load(SPILLWAY_CUDA_STANDIN);
    CHECK(driver->describe(driver::out_of_memory) == "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    CHECK_THAT(driver->describe(12345), Catch::Contains("12345") && Catch::Contains("unknown"));
    CHECK_NOTHROW(driver->check(driver::success, "cuX", "x"));
    try {
        driver->check(driver::out_of_memory, "cuMemAlloc", "4096 bytes");
        FAIL("no error");
    } catch (const DriverError& error) {
        CHECK(error.result == driver::out_of_memory);
        CHECK_THAT(error.what(),
                   Catch::Contains("4096 bytes") && Catch::Contains("cuMemAlloc failed with "
                                                                    "CUDA_ERROR_OUT_OF_MEMORY"));
    }
}

TEST_CASE("errors that lose the context are told from those that do not") {
    for (const int lost : {700, 702, 710, 714, 716, 718, 719, 999, 214})
        CHECK(is_sticky(lost));
    for (const int passing : {0, 1, 2, 201, 400, 500, 600, 701, 704, 709, 712, 713, 720})
        CHECK_FALSE(is_sticky(passing));
}

TEST_CASE("what the machine has is reported without a context, and a reason where it has nothing") {
    standin::Settings settings;
    settings.devices = 2;
    standin::reset(settings);
    const CudaReport report = inspect_cuda(SPILLWAY_CUDA_STANDIN);
    CHECK(report.driver_version == settings.driver_version);
    REQUIRE(report.devices.size() == 2);
    CHECK(report.devices[1].name == "Stand-in");
    CHECK(report.devices[1].memory_bytes == settings.device_memory_bytes);
    CHECK(report.devices[1].major == 9);
    CHECK(report.devices[1].pci_address == "0000:01:00.0");
    CHECK(standin::counts().contexts == 0);
    CHECK(report.refusal.empty() == !kernel_image().empty());
    CHECK_FALSE(report.kernels.empty());
    if (report.refusal.empty()) {
        CHECK(cuda_refusal(report, 1).empty());
        CHECK_THAT(cuda_refusal(report, 2), Catch::Contains("2 devices"));
        CHECK_FALSE(cuda_refusal(report, -1).empty());
    }

    const CudaReport none = inspect_cuda("/nowhere/libcuda.so.1");
    CHECK_THAT(none.refusal, Catch::Contains("/nowhere/libcuda.so.1"));
    CHECK(cuda_refusal(none, 0) == none.refusal);
    CHECK(none.devices.empty());
    CHECK(none.driver_version == 0);
}

TEST_CASE("a driver older than the kernels' compiler is refused, and a GPU older than Ampere") {
    standin::Settings settings;
    settings.driver_version = 1000 * kernel_image_cuda_major() - 990;
    settings.capability_major = 7;
    standin::reset(settings);
    const CudaReport old = inspect_cuda(SPILLWAY_CUDA_STANDIN);
    REQUIRE(old.devices.size() == 1);
    CHECK_THAT(old.devices[0].refusal,
               Catch::Contains("Stand-in has compute capability 7.0") && Catch::Contains("Ampere"));
    if (kernel_image().empty())
        return;
    const auto version = std::to_string(kernel_image_cuda_major());
    CHECK_THAT(old.refusal, Catch::Contains("compiled for CUDA " + version) &&
                                Catch::Contains("install an NVIDIA driver of CUDA " + version));
    CHECK(cuda_refusal(old, 0) == old.refusal);
    settings.driver_version = 1000 * kernel_image_cuda_major();
    standin::reset(settings);
    const CudaReport report = inspect_cuda(SPILLWAY_CUDA_STANDIN);
    CHECK(report.refusal.empty());
    CHECK(cuda_refusal(report, 0) == report.devices[0].refusal);
}

TEST_CASE("the image of the kernels is nvcc's and names every kernel, or says why there is none") {
    const auto names = standin::kernel_names();
    std::vector<std::string> listed(kernel_names().begin(), kernel_names().end());
    std::sort(listed.begin(), listed.end());
    CHECK(listed == names);
    const auto image = kernel_image();
    if (image.empty()) {
        CHECK_THAT(std::string(kernel_image_description()),
                   Catch::Contains("no nvcc") && Catch::Contains("use 'cpu'"));
        return;
    }
    CHECK_THAT(std::string(kernel_image_description()), Catch::Contains("sm_90"));
    const std::string bytes(reinterpret_cast<const char*>(image.data()), image.size());
    CHECK(bytes.substr(0, 4) == "\x50\xED\x55\xBA");
    for (const auto& name : names)
        CHECK_THAT(bytes, Catch::Contains(name));
}
