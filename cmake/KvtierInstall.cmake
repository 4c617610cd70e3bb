# What `cmake --install` and the packages put where. Components are packages (KvtierPackages.cmake).
if(CMAKE_LIBRARY_ARCHITECTURE AND NOT DEFINED CMAKE_INSTALL_LIBDIR AND EXISTS /etc/debian_version)
  set(CMAKE_INSTALL_LIBDIR lib/${CMAKE_LIBRARY_ARCHITECTURE} CACHE PATH "Where libraries go, under the prefix")
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS kvtierd RUNTIME DESTINATION ${CMAKE_INSTALL_SBINDIR} COMPONENT kvtier)
install(TARGETS kvtierctl kvtier-engine kvtier-warm RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT kvtier)
install(DIRECTORY engine_adapter/models/docs-4m DESTINATION ${CMAKE_INSTALL_DATADIR}/kvtier/models COMPONENT kvtier)
install(FILES scripts/demo-document.txt DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT kvtier)

# The units name the programs and the configuration by path, which is known when they are installed.
install(CODE "set(KVTIER_SOURCE_DIR \"${CMAKE_SOURCE_DIR}\")
set(KVTIER_STAGE \"${CMAKE_BINARY_DIR}/service\")" COMPONENT kvtier)
install(SCRIPT cmake/InstallService.cmake COMPONENT kvtier)

set(completions ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
foreach(program kvtierctl kvtierd kvtier-engine kvtier-warm)
  install(FILES systemd/completion/kvtier.bash DESTINATION ${completions} RENAME ${program} COMPONENT kvtier)
endforeach()

# Manual pages: of the daemon from docs/man, of the tools from their own --help.
find_program(KVTIER_MD2MAN go-md2man)
find_package(Python3 COMPONENTS Interpreter)
if(KVTIER_MD2MAN AND Python3_FOUND)
  set(SYSCONFDIR /etc/kvtier)
  file(READ systemd/kvtierd.toml KVTIERD_TOML)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/systemd/kvtierd.toml)
  set(pages)
  foreach(page kvtierd.8 kvtierd.toml.5)
    configure_file(docs/man/${page}.md ${CMAKE_BINARY_DIR}/man/${page}.md @ONLY)
  endforeach()
  foreach(tool kvtierctl kvtier-engine kvtier-warm)
    add_custom_command(OUTPUT man/${tool}.1.md
      COMMAND Python3::Interpreter ${CMAKE_SOURCE_DIR}/scripts/man-from-help.py $<TARGET_FILE:${tool}>
              --name ${tool} --version ${PROJECT_VERSION} > man/${tool}.1.md
      DEPENDS ${tool} scripts/man-from-help.py VERBATIM)
  endforeach()
  foreach(page kvtierd.8 kvtierd.toml.5 kvtierctl.1 kvtier-engine.1 kvtier-warm.1)
    add_custom_command(OUTPUT man/${page}.gz
      COMMAND ${KVTIER_MD2MAN} -in man/${page}.md -out man/${page}
      COMMAND gzip -9nf man/${page}
      DEPENDS ${CMAKE_BINARY_DIR}/man/${page}.md VERBATIM)
    list(APPEND pages ${CMAKE_BINARY_DIR}/man/${page}.gz)
    string(REGEX MATCH "[0-9]$" section ${page})
    install(FILES ${CMAKE_BINARY_DIR}/man/${page}.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} COMPONENT kvtier)
  endforeach()
  add_custom_target(man ALL DEPENDS ${pages})
else()
  message(STATUS "No manual pages are made: install go-md2man")
endif()

# The library, its headers, and how CMake and pkg-config find it.
install(TARGETS kvtier_shared EXPORT kvtier
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libkvtier0 NAMELINK_COMPONENT libkvtier-dev
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY core/include/kvtier client/include/kvtier DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libkvtier-dev)
install(DIRECTORY client/examples DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/libkvtier-dev COMPONENT libkvtier-dev)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvtier)
install(EXPORT kvtier NAMESPACE kvtier:: FILE kvtierTargets.cmake DESTINATION ${config_dir} COMPONENT libkvtier-dev)
configure_package_config_file(cmake/kvtierConfig.cmake.in kvtierConfig.cmake INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(kvtierConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/kvtierConfig.cmake ${CMAKE_BINARY_DIR}/kvtierConfigVersion.cmake
  DESTINATION ${config_dir} COMPONENT libkvtier-dev)
file(RELATIVE_PATH KVTIER_PC_TO_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
string(REGEX REPLACE "/$" "" KVTIER_PC_TO_PREFIX "${KVTIER_PC_TO_PREFIX}")
configure_file(cmake/libkvtier.pc.in libkvtier.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/libkvtier.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libkvtier-dev)
