# What `cmake --install` puts into a prefix: the program, the libraries, their public headers below
# include/spillway/ (which is the include root), and find_package(spillway).
#
#   component spillway_program   bin/spillway
#   component spillway_runtime   libspillway_c.so.N
#   component spillway_develop   all that compiling against Spillway needs
#
# A Python wheel has a component of its own and takes none of these.

include(CMakePackageConfigHelpers)
set(spillway_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)

install(TARGETS spillway RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT spillway_program)

# spillway_install(PART TARGETS ...): the export set that find_package(spillway COMPONENTS part) loads.
function(spillway_install part)
    set(targets_name spillway-${part}-targets)
    foreach(target IN LISTS ARGN)
        set_target_properties(spillway_${target} PROPERTIES EXPORT_NAME ${target})
    endforeach()
    list(TRANSFORM ARGN PREPEND spillway_)
    install(TARGETS ${ARGN} EXPORT ${targets_name}
            ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT spillway_develop
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT spillway_runtime
                    NAMELINK_COMPONENT spillway_develop)
    install(EXPORT ${targets_name} NAMESPACE spillway:: DESTINATION ${spillway_package_dir}
            COMPONENT spillway_develop)
endfunction()

spillway_install(offload nvme cpu_optim cuda offload)
spillway_install(engine engine tensor_export)
spillway_install(c c)

# The headers use C++20, whatever a client's own default is.
foreach(layer IN ITEMS nvme cpu_optim cuda offload engine tensor_export)
    target_compile_features(spillway_${layer} INTERFACE cxx_std_20)
endforeach()

# detail/ is private to its layer.
foreach(folder IN ITEMS nvme cpu_optim cuda offload engine integrations/c integrations/cpp)
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/${folder}/
            DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/spillway/${folder}
            COMPONENT spillway_develop
            FILES_MATCHING PATTERN "*.h" PATTERN detail EXCLUDE)
endforeach()

configure_package_config_file(
    ${CMAKE_SOURCE_DIR}/cmake/spillwayConfig.cmake.in ${CMAKE_BINARY_DIR}/package/spillwayConfig.cmake
    INSTALL_DESTINATION ${spillway_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
    ${CMAKE_BINARY_DIR}/package/spillwayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/spillwayConfig.cmake
              ${CMAKE_BINARY_DIR}/package/spillwayConfigVersion.cmake
        DESTINATION ${spillway_package_dir} COMPONENT spillway_develop)

# For C programs built without CMake. The way from its folder to the prefix, so that a prefix can move:
file(RELATIVE_PATH spillway_pc_to_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" spillway_pc_to_prefix ${spillway_pc_to_prefix})
configure_file(${CMAKE_SOURCE_DIR}/cmake/spillway_c.pc.in ${CMAKE_BINARY_DIR}/package/spillway_c.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/spillway_c.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT spillway_develop)
