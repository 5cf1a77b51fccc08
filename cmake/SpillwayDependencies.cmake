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

# Optional: nvcc compiles the kernels of the CUDA device. Nothing of the toolkit is linked: the driver is loaded when
# a device is asked for. -DSPILLWAY_NVCC=FILE names another one; scripts/setup.sh --cuda brings one into .cuda/.
set(SPILLWAY_KERNELS OFF)
if(SPILLWAY_CUDA)
    find_program(SPILLWAY_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
                 PATHS /usr/local/cuda ${CMAKE_SOURCE_DIR}/.cuda/nvidia/cu13)
    set(SPILLWAY_NVCC_VERSION)
    if(SPILLWAY_NVCC)
        execute_process(COMMAND ${SPILLWAY_NVCC} --version OUTPUT_VARIABLE nvcc_text ERROR_QUIET)
        string(REGEX MATCH "release ([0-9]+[.][0-9]+)" matched "${nvcc_text}")
        set(SPILLWAY_NVCC_VERSION ${CMAKE_MATCH_1})
    endif()
    if(NOT SPILLWAY_NVCC)
        message(STATUS "no nvcc found: the CUDA device will be refused (scripts/setup.sh --cuda brings one)")
    elseif(NOT SPILLWAY_NVCC_VERSION OR SPILLWAY_NVCC_VERSION VERSION_LESS 12.0)
        message(STATUS "${SPILLWAY_NVCC} is no nvcc of 12.0 or later: the CUDA device will be refused")
    else()
        set(SPILLWAY_KERNELS ON)
        message(STATUS "CUDA kernels by ${SPILLWAY_NVCC} ${SPILLWAY_NVCC_VERSION}")
    endif()
endif()

if(SPILLWAY_TESTS)
    find_path(CATCH2_INCLUDE_DIR catch2/catch.hpp REQUIRED)
    find_file(CATCH2_DISCOVERY Catch.cmake PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Catch2
              /usr/lib/cmake/Catch2 /usr/share/cmake/Catch2 REQUIRED)
endif()
