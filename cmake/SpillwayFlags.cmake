# What every translation unit of the project is compiled with: spillway_flags; spillway_plain_flags for what is not
# instrumented in a build with sanitizers, and the same in all builds.

include(GNUInstallDirs)

add_library(spillway_plain_flags INTERFACE)
target_include_directories(spillway_plain_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_features(spillway_plain_flags INTERFACE cxx_std_20)
target_compile_options(spillway_plain_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
    -Woverloaded-virtual -Wnull-dereference
    $<$<BOOL:${SPILLWAY_WARNINGS_AS_ERRORS}>:-Werror>
    # Contraction would make the same source give other bits on another instruction set.
    -ffp-contract=off)
# g++ 12 reports false positives of this one inside its own library when optimising.
target_compile_options(spillway_plain_flags INTERFACE -Wno-null-dereference)

set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")

add_library(spillway_flags INTERFACE)
target_link_libraries(spillway_flags INTERFACE spillway_plain_flags)
if(SPILLWAY_SANITIZE)
    # Instrumented code makes g++ 12 see uninitialised values where there are none.
    target_compile_options(spillway_flags INTERFACE -fsanitize=${SPILLWAY_SANITIZE} -fno-omit-frame-pointer
                           -Wno-error=maybe-uninitialized)
    target_link_options(spillway_flags INTERFACE -fsanitize=${SPILLWAY_SANITIZE})
    if(SPILLWAY_SANITIZE MATCHES "undefined")
        # A null pointer is met by the address sanitizer too; looking at each one is a sixth of the time to compile.
        target_compile_options(spillway_flags INTERFACE -fno-sanitize-recover=undefined -fno-sanitize=null)
    endif()
endif()

# spillway_layer(NAME SOURCES ... DEPENDS ... [PRECOMPILED HEADERS ...]): the static library `spillway_NAME`, alias
# `spillway::NAME`, of one layer. Of what its sources include most, PRECOMPILED is read once for all of them; they
# still include what they use, which `scripts/check_layers.py --headers` compiles without it.
function(spillway_layer name)
    cmake_parse_arguments(LAYER "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS;PRECOMPILED" ${ARGN})
    add_library(spillway_${name} STATIC ${LAYER_SOURCES})
    add_library(spillway::${name} ALIAS spillway_${name})
    target_link_libraries(spillway_${name} PUBLIC ${LAYER_DEPENDS}
                          PRIVATE $<BUILD_INTERFACE:spillway_flags> ${LAYER_PRIVATE_DEPENDS})
    target_include_directories(spillway_${name} PUBLIC
        $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/spillway>)
    # A compiler cache knows no object again that was compiled in another folder with a precompiled header, and what
    # the Python package's build shares with the program's is worth more. Nothing is built twice with a sanitizer.
    if(SPILLWAY_SANITIZE)
        list(APPEND LAYER_PRECOMPILED <fmt/format.h> <algorithm> <chrono> <filesystem> <functional> <mutex>)
    endif()
    # Sanitizers are put into a release build, whose uninstrumented parts a compiler cache has then.
    if(SPILLWAY_SANITIZE)
        target_compile_options(spillway_${name} PRIVATE -O1 -UNDEBUG)
    endif()
    if(LAYER_PRECOMPILED)
        target_precompile_headers(spillway_${name} PRIVATE ${LAYER_PRECOMPILED})
    endif()
endfunction()
