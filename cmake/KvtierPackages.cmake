# Debian packages: `cpack` in the build tree. One component, one package.
set(CPACK_GENERATOR DEB)
set(KVTIER_MAINTAINER "kvtier authors <kvtier@example.org>" CACHE STRING "Who the packages are from")
set(CPACK_PACKAGE_CONTACT ${KVTIER_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tiered KV cache for LLM inference on one host")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_OUTPUT_FILE_PREFIX packages)
set(CPACK_COMPONENTS_ALL kvtier libkvtier0 libkvtier-dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
# Where a package that uses another of the same build finds its libraries while its dependencies are read.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/client)

set(control ${CMAKE_SOURCE_DIR}/packaging)
set(CPACK_DEBIAN_KVTIER_PACKAGE_NAME kvtier)
set(CPACK_DEBIAN_KVTIER_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_KVTIER_PACKAGE_DEPENDS "systemd | systemd-sysusers, init-system-helpers (>= 1.52)")
set(CPACK_DEBIAN_KVTIER_PACKAGE_CONTROL_EXTRA
  "${control}/conffiles;${control}/postinst;${control}/prerm;${control}/postrm")
set(CPACK_COMPONENT_KVTIER_DESCRIPTION "kvtierd keeps the attention keys and values that inference engines have
computed, across GPU memory, host memory and disks, so that no prompt prefix
is computed twice. This package has the daemon as a service, its tools and a
reference engine.")

set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_NAME libkvtier0)
set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_LIBKVTIER0_PACKAGE_CONTROL_EXTRA "${control}/triggers")
set(CPACK_COMPONENT_LIBKVTIER0_DESCRIPTION "The client library: what an inference engine uses to find blocks of attention
keys and values in kvtierd, to load them and to write new ones back.")

set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_NAME libkvtier-dev)
set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_LIBKVTIER-DEV_PACKAGE_DEPENDS "libboost1.81-dev | libboost-dev (>= 1.81)")
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_COMPONENT_LIBKVTIER-DEV_DEPENDS libkvtier0)
set(CPACK_COMPONENT_LIBKVTIER-DEV_DESCRIPTION "For engines that use the client library: its headers, and how CMake and
pkg-config find it.")

# The documentation that Debian wants of every package.
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(package ${CPACK_COMPONENTS_ALL})
  set(doc ${CMAKE_BINARY_DIR}/packaging/${package})
  file(WRITE ${doc}/changelog
    "kvtier (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n"
    " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  execute_process(COMMAND gzip -9nf ${doc}/changelog COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${doc}/changelog.gz packaging/copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${package})
  if(EXISTS ${control}/${package}.lintian-overrides)
    install(FILES ${control}/${package}.lintian-overrides
      DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides RENAME ${package} COMPONENT ${package})
  endif()
endforeach()
include(CPack)
