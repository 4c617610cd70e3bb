// Traces as files: what is read, and what is wrong with a line.
#include "daemon/trace/trace_file.h"

#include <gtest/gtest.h>

#include <sstream>

namespace kvtier::daemon::testing {
namespace {

Result<Trace> read(const std::string& text, std::uint32_t block_tokens = 0) {
  std::istringstream lines(text);
  return read_trace(lines, "some.jsonl", block_tokens);
}

std::string error_of(const std::string& text, std::uint32_t block_tokens = 0) {
  const auto trace = read(text, block_tokens);
  return trace ? "none" : trace.error().message;
}

constexpr const char* kGood =
    R"({"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]})"
    "\n";

TEST(TraceFile, requests_have_their_times_lengths_and_blocks) {
  const auto trace =
      read(std::string(kGood) + "\n" +
           R"({"timestamp": 2500, "input_length": 1024, "output_length": 7, "hash_ids": [0, 2]})");
  ASSERT_TRUE(trace) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].at_ms, 2500U);
  EXPECT_EQ(trace->requests[1].output_tokens, 7U);
  EXPECT_EQ(trace->requests[1].blocks, (std::vector<std::uint64_t>{0, 2}));
  EXPECT_EQ(trace->block_tokens, 512U);
  EXPECT_EQ(trace->blocks, 4U);
  EXPECT_EQ(trace->different_blocks, 3U);
  EXPECT_EQ(trace->prompt_tokens, 2024U);
  EXPECT_DOUBLE_EQ(trace->seconds(), 2.5);
}

TEST(TraceFile, a_wrong_line_is_named_with_what_is_wrong_and_the_mend) {
  EXPECT_EQ(error_of(std::string(kGood) + "[1]"),
            "some.jsonl:2: no JSON object: write one request a line, as {\"timestamp\": 0, ...}");
  EXPECT_EQ(error_of(std::string(kGood) + "{\"timestamp\": 0"),
            "some.jsonl:2: no JSON object: write one request a line, as {\"timestamp\": 0, ...}");
  EXPECT_EQ(error_of(R"({"input_length": 1, "output_length": 1, "hash_ids": [1]})"),
            "some.jsonl:1: no 'timestamp': add it, as a whole number");
  EXPECT_EQ(
      error_of(R"({"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": [1]})"),
      "some.jsonl:1: 'input_length' is no number from 0 to 1073741824: correct it");
  EXPECT_EQ(error_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []})"),
            "some.jsonl:1: no 'hash_ids': add the numbers of the prompt's blocks, at least one");
  EXPECT_EQ(
      error_of(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-2]})"),
      "some.jsonl:1: 'hash_ids' has what is no whole number from 0 up: correct it");
}

TEST(TraceFile, requests_are_in_the_order_of_time) {
  EXPECT_EQ(error_of(R"({"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                     "\n" +
                     std::string(kGood)),
            "some.jsonl:2: 'timestamp' is less than in the request before: sort the lines by it");
}

TEST(TraceFile, blocks_are_of_the_size_that_is_given) {
  EXPECT_EQ(read(kGood, 1024)->block_tokens, 1024U);
  EXPECT_EQ(error_of(kGood, 256),
            "some.jsonl:1: 'input_length' is more than 2 blocks of 256 tokens: correct it, or give "
            "the size of the trace's blocks");
}

TEST(TraceFile, a_trace_without_a_request_or_a_file_that_is_not_there_is_refused) {
  EXPECT_EQ(error_of("\n\n"), "some.jsonl: no request: write one a line");
  const auto missing = read_trace(std::filesystem::path("/nowhere/a.jsonl"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().message, "/nowhere/a.jsonl: cannot be read: give a file of JSON lines");
}

}  // namespace
}  // namespace kvtier::daemon::testing
