# check-format: fails where clang-format would change a file.
add_custom_target(check-format COMMAND ${CMAKE_SOURCE_DIR}/scripts/check-format.sh VERBATIM)
