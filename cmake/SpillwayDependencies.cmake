# Every third-party library, as an imported target. scripts/setup.sh installs them.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(TBB REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(highway REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)

# Optional: no layer has device code yet, so a toolkit changes nothing in this version.
if(SPILLWAY_CUDA)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND)
        message(STATUS "CUDA toolkit ${CUDAToolkit_VERSION} found; this version has no CUDA device")
    else()
        message(STATUS "no CUDA toolkit found")
    endif()
endif()

if(SPILLWAY_TESTS)
    find_path(CATCH2_INCLUDE_DIR catch2/catch.hpp REQUIRED)
    find_file(CATCH2_DISCOVERY Catch.cmake PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Catch2
              /usr/lib/cmake/Catch2 /usr/share/cmake/Catch2 REQUIRED)
endif()
