# What every target of ours is compiled with: link kvtier::options (privately).
add_library(kvtier_options INTERFACE)
add_library(kvtier::options ALIAS kvtier_options)
target_compile_options(kvtier_options INTERFACE -Wall -Wextra -Wconversion -Wshadow -Wno-sign-conversion -Werror)
# At -O3 GCC 12 warns of what is not so: overlapping copies inside std::string (its bug 105651), and
# uninitialised strings inside variants that hold no string. Clang's and the sanitizers' word counts there.
target_compile_options(kvtier_options INTERFACE
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-maybe-uninitialized>")
target_include_directories(kvtier_options INTERFACE ${CMAKE_SOURCE_DIR})

set(KVTIER_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined or thread")
if(KVTIER_SANITIZE)
  add_compile_options(-fsanitize=${KVTIER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVTIER_SANITIZE})
endif()

find_program(KVTIER_CCACHE ccache)
if(KVTIER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVTIER_CCACHE})
endif()
find_program(KVTIER_LLD ld.lld)
if(KVTIER_LLD)
  add_link_options(-fuse-ld=lld)
endif()

if(KVTIER_CUDA STREQUAL "ON")
  message(FATAL_ERROR "KVTIER_CUDA=ON: there is no CUDA backend in this version; use AUTO or OFF, which emulate device memory")
elseif(NOT KVTIER_CUDA MATCHES "^(AUTO|OFF)$")
  message(FATAL_ERROR "KVTIER_CUDA must be AUTO, ON or OFF, not '${KVTIER_CUDA}'")
endif()
