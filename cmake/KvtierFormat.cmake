# check-format: fails where clang-format would change a file.
find_program(KVTIER_CLANG_FORMAT NAMES clang-format-14 clang-format)
if(KVTIER_CLANG_FORMAT)
  file(GLOB_RECURSE KVTIER_SOURCES CONFIGURE_DEPENDS
    core/*.h core/*.cc client/*.h client/*.cc ctl/*.h ctl/*.cc daemon/*.h daemon/*.cc storage/*.h storage/*.cc kernels/*.h kernels/*.cc
    kernels/*.cu kernels/*.cuh kernels/*.inc engine_adapter/*.h engine_adapter/*.cc bench/*.h bench/*.cc
    tests/*.h tests/*.cc)
  add_custom_target(check-format
    COMMAND ${KVTIER_CLANG_FORMAT} --dry-run -Werror ${KVTIER_SOURCES}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} VERBATIM)
endif()
