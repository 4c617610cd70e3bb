# What every target of ours is compiled with: link kvtier::options (privately). A release is never stopped by what
# another compiler, or -O3, warns of.
add_library(kvtier_options INTERFACE)
add_library(kvtier::options ALIAS kvtier_options)
target_compile_options(kvtier_options INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wconversion;-Wshadow;-Wno-sign-conversion;$<$<NOT:$<CONFIG:Release>>:-Werror>>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;$<$<NOT:$<CONFIG:Release>>:-Werror=all-warnings>;--expt-relaxed-constexpr>")
# At -O3 GCC 12 warns of what is not so: overlapping copies inside std::string (its bug 105651), and
# uninitialised strings inside variants that hold no string. Clang's and the sanitizers' word counts there.
target_compile_options(kvtier_options INTERFACE
  "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict;-Wno-maybe-uninitialized>")
target_include_directories(kvtier_options INTERFACE ${CMAKE_SOURCE_DIR})

# Several sources in one compilation (the presets of tests): three quarters of a compilation are headers. In such a one
# GCC takes a source for a header, and warns of what it says of its own unnamed namespace.
if(CMAKE_UNITY_BUILD)
  target_compile_options(kvtier_options INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>")
endif()

set(KVTIER_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined or thread")
if(KVTIER_SANITIZE)
  add_compile_options(-fsanitize=${KVTIER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KVTIER_SANITIZE})
  if(KVTIER_SANITIZE MATCHES "undefined")
    # UBSan looks through a pipe whether an object can be read before it tells its type: where tests leave no
    # descriptor, each seems to have none.
    add_compile_options(-fno-sanitize=vptr)
  endif()
  if(KVTIER_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC warns that TSan does not see atomic_thread_fence, which Boost.Asio's headers use. Nothing relies on those
    # fences alone: work goes from thread to thread under the scheduler's mutex, which TSan does see.
    add_compile_options(-Wno-tsan)
  endif()
endif()

option(KVTIER_COVERAGE "Have the programs count which lines they ran, for gcovr" OFF)
if(KVTIER_COVERAGE)
  # Threads count without locks unless told, and lose, or go below zero.
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

option(KVTIER_FUZZ "Build the libFuzzer programs of tests/fuzz (needs clang)" OFF)
if(KVTIER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "KVTIER_FUZZ needs clang: cmake --preset fuzz, or CMAKE_CXX_COMPILER=clang++")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

find_program(KVTIER_CCACHE ccache)
if(KVTIER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KVTIER_CCACHE})
endif()
find_program(KVTIER_LLD ld.lld)
if(KVTIER_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# KVTIER_WITH_CUDA: whether the CUDA backend is built.
set(KVTIER_WITH_CUDA OFF)
if(NOT KVTIER_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "KVTIER_CUDA must be AUTO, ON or OFF, not '${KVTIER_CUDA}'")
endif()
if(NOT KVTIER_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  find_program(KVTIER_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(KVTIER_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${KVTIER_NVCC})
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(KVTIER_WITH_CUDA ON)
  elseif(KVTIER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVTIER_CUDA=ON, but no nvcc was found: install the CUDA Toolkit (13.0 or later) or set CMAKE_CUDA_COMPILER")
  endif()
endif()
if(KVTIER_WITH_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 100-real 100-virtual)
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  # CMake 3.25 does not know how nvcc 13 spells it.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(KVTIER_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${KVTIER_CCACHE})
  endif()
  find_package(CUDAToolkit 13.0 REQUIRED)
  target_compile_definitions(kvtier_options INTERFACE KVTIER_HAVE_CUDA=1)
endif()
message(STATUS "CUDA backend: ${KVTIER_WITH_CUDA}")
