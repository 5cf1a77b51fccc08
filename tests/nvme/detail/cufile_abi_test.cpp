// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
//
// That the interface declared here is cuFile's, where its header is found.
#include <cerrno>
#include <cstddef>
#include <string>
#include <type_traits>

#include <catch2/catch.hpp>

#include "nvme/detail/cufile_calls.h"
#include "tests/support/skip.h"

#if defined(SPILLWAY_TEST_CUFILE_HEADER)
#include <cufile.h>
#endif

TEST_CASE("cufile_abi: declared as in cuFile's own header") {
#if !defined(SPILLWAY_TEST_CUFILE_HEADER)
    spillway::testing::skip("cufile.h was not found when this was built");
#else
    namespace ours = spillway::nvme::detail;
    STATIC_REQUIRE(sizeof(ours::CuFileError) == sizeof(CUfileError_t));
    STATIC_REQUIRE(offsetof(ours::CuFileError, code) == offsetof(CUfileError_t, err));
    STATIC_REQUIRE(offsetof(ours::CuFileError, driver_code) == offsetof(CUfileError_t, cu_err));

    STATIC_REQUIRE(sizeof(ours::CuFileDescriptor) == sizeof(CUfileDescr_t));
    STATIC_REQUIRE(offsetof(ours::CuFileDescriptor, type) == offsetof(CUfileDescr_t, type));
    STATIC_REQUIRE(offsetof(ours::CuFileDescriptor, descriptor) ==
                   offsetof(CUfileDescr_t, handle.fd));
    STATIC_REQUIRE(offsetof(ours::CuFileDescriptor, file_system_operations) ==
                   offsetof(CUfileDescr_t, fs_ops));
    CHECK(ours::CuFileDescriptor{}.type == CU_FILE_HANDLE_TYPE_OPAQUE_FD);

    using Ours = ours::CuFileProperties;
    STATIC_REQUIRE(sizeof(Ours) == sizeof(CUfileDrvProps_t));
    STATIC_REQUIRE(offsetof(Ours, driver.minor_version) ==
                   offsetof(CUfileDrvProps_t, nvfs.minor_version));
    STATIC_REQUIRE(offsetof(Ours, driver.status_flags) ==
                   offsetof(CUfileDrvProps_t, nvfs.dstatusflags));
    STATIC_REQUIRE(offsetof(Ours, driver.control_flags) ==
                   offsetof(CUfileDrvProps_t, nvfs.dcontrolflags));
    STATIC_REQUIRE(offsetof(Ours, feature_flags) == offsetof(CUfileDrvProps_t, fflags));
    STATIC_REQUIRE(offsetof(Ours, pinned_memory_kib) ==
                   offsetof(CUfileDrvProps_t, max_device_pinned_mem_size));

    CHECK(ours::cufile_nvme_bit == CU_FILE_NVME_SUPPORTED);
    CHECK(ours::cufile_compatibility_bit == CU_FILE_ALLOW_COMPAT_MODE);
    CHECK(ours::cufile_peer_to_peer_bit == CU_FILE_P2P_SUPPORTED);
    CHECK(ours::cufile_already_open == CU_FILE_DRIVER_ALREADY_OPEN);

    using Transfer = ssize_t (*)(CUfileHandle_t, void*, std::size_t, off_t, off_t);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileRead), Transfer>);
    STATIC_REQUIRE(std::is_same_v<decltype(ours::CuFileCalls::read), Transfer>);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileWrite), decltype(ours::CuFileCalls::write)>);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileHandleDeregister),
                                  decltype(ours::CuFileCalls::deregister_handle)>);
    using Register = CUfileError_t (*)(const void*, std::size_t, int);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileBufRegister), Register>);
    using Deregister = CUfileError_t (*)(const void*);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileBufDeregister), Deregister>);
    using Properties = CUfileError_t (*)(CUfileDrvProps_t*);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileDriverGetProperties), Properties>);
    using Handle = CUfileError_t (*)(CUfileHandle_t*, CUfileDescr_t*);
    STATIC_REQUIRE(std::is_same_v<decltype(&cuFileHandleRegister), Handle>);
#endif
}

TEST_CASE("cufile_abi: cuFile's codes have an errno and words") {
    using spillway::nvme::detail::meaning_of_cufile;
    CHECK(meaning_of_cufile(5020).error == EINVAL);
    CHECK(meaning_of_cufile(5036).error == ENOMEM);
    CHECK(meaning_of_cufile(4711).error == EIO);
    for (int code = 5001; code <= 5050; ++code)
        CHECK_FALSE(std::string(meaning_of_cufile(code).text).empty());
}
