#include <gtest/gtest.h>

#include <fstream>

#include "engine_adapter/warm/manifest.h"
#include "engine_adapter/warm/warmer.h"

namespace kvtier::warm {
namespace {

namespace fs = std::filesystem;

class WarmTest : public testing::Test {
 protected:
  WarmTest() {
    std::string pattern = (fs::temp_directory_path() / "kvtier-warm-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~WarmTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const fs::path file = folder_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }
  std::vector<std::string> names(const std::vector<Document>& documents) const {
    std::vector<std::string> found;
    for (const Document& one : documents) found.push_back(fs::relative(one.path, folder_).string());
    return found;
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

using Names = std::vector<std::string>;

TEST_F(WarmTest, a_directory_gives_its_files_by_name_and_each_document_comes_once) {
  write("b.md", "b");
  write("a/deep.md", "deep");
  write(".git/config", "hidden");
  fs::create_symlink("nowhere", folder_ / "broken");
  const auto found =
      find_documents({{at("b.md"), {}, {}}, {folder_.string(), {}, {}}, {at("*.md"), {}, {}}});
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(names(*found), (Names{"b.md", "a/deep.md"}));
  EXPECT_TRUE((*found)[0].named);
  EXPECT_FALSE((*found)[1].named);
  fs::create_symlink("b.md", folder_ / "c.md");
  fs::create_hard_link(folder_ / "b.md", folder_ / "d.md");
  EXPECT_EQ(names(find_documents({{at("c.md"), {}, {}}, {at("b.md"), {}, {}}, {at("d.md"), {}, {}}})
                      .value()),
            (Names{"b.md"}))
      << "links lead to the same document";
  const auto twice = find_documents({{at("b.md"), {}, "one"}, {at("b.md"), {}, "two"}});
  EXPECT_EQ(twice->size(), 2U);  // the caches of two tenants
}

TEST_F(WarmTest, what_matches_nothing_is_named) {
  for (const char* path : {"missing.md", "*.none"}) {
    const auto found = find_documents({{at(path), {}, {}}});
    ASSERT_FALSE(found) << path;
    EXPECT_EQ(found.error().code, Errc::not_found);
    EXPECT_NE(found.error().message.find(path), std::string::npos) << found.error().message;
  }
}

TEST_F(WarmTest, a_prompt_is_the_prefix_and_the_file_and_nothing_else) {
  const auto prefix = std::make_shared<const std::string>("Be brief.\n");
  EXPECT_EQ(read_prompt({write("a", "text"), prefix, {}, 0, true}).value(), "Be brief.\ntext");
  EXPECT_EQ(read_prompt({write("m", "\xEF\xBB\xBFtext"), prefix, {}, 0, true}).value(),
            "Be brief.\ntext")
      << "a byte-order mark is nobody's text";
  EXPECT_FALSE(read_prompt({write("m", "\xEF\xBB\xBF"), {}, {}, 0, true}));
  for (const auto& [text, why] : {std::pair{std::string("ok\xff"), "is not UTF-8 text (byte 2)"},
                                  std::pair{std::string(), "is empty"}}) {
    const auto refused = read_prompt({write("b", text), prefix, {}, 0, true});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::invalid);
    EXPECT_NE(refused.error().message.find(why), std::string::npos) << refused.error().message;
  }
}

TEST_F(WarmTest, a_manifest_says_the_same_in_toml_and_in_json) {
  write("system.txt", "From a file. ");
  const std::string toml = write("w.toml",
                                 "prefix_file = 'system.txt'\nsalt = 'team-a'\n"
                                 "[[documents]]\npath = 'docs'\n"
                                 "[[documents]]\npath = '/abs/x.md'\nprefix = ''\nsalt = 'b'\n");
  const std::string json = write("w.json",
                                 R"({"prefix_file": "system.txt", "salt": "team-a", "documents": [
      {"path": "docs"}, {"path": "/abs/x.md", "prefix": "", "salt": "b"}]})");
  for (const std::string& file : {toml, json}) {
    const auto sources = load_manifest(file, {"", nullptr, "of the command line"});
    ASSERT_TRUE(sources) << sources.error().message;
    ASSERT_EQ(sources->size(), 2U);
    EXPECT_EQ((*sources)[0].path, at("docs"));
    EXPECT_EQ(*(*sources)[0].prefix, "From a file. ");
    EXPECT_EQ((*sources)[0].salt, "team-a");
    EXPECT_EQ((*sources)[1].path, "/abs/x.md");
    EXPECT_EQ(*(*sources)[1].prefix, "");
    EXPECT_EQ((*sources)[1].salt, "b");
  }
}

TEST_F(WarmTest, a_manifest_that_does_not_hold_is_refused_with_the_place) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"salt = 'a'\ndocuments = [", "w.toml:2:14: "},
      {"salt = 'a'\n", "documents: give at least one"},
      {"[[documents]]\npth = 'a'\n", "documents[0]: no key is called 'pth'"},
      {"colour = 1\n[[documents]]\npath = 'a'\n", "no key is called 'colour'"},
      {"[[documents]]\npath = 'a'\n[[documents]]\nsalt = 'b'\n", "documents[1]"},
      {"[[documents]]\npath = 7\n", "documents[0]"},
      {"prefix = 'a'\nprefix_file = 'b'\n[[documents]]\npath = 'a'\n", "not both"},
      {"prefix_file = 'missing'\n[[documents]]\npath = 'a'\n", "missing"},
  };
  for (const auto& [text, place] : wrong) {
    const auto refused = load_manifest(write("w.toml", text), {});
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().message.find("w.toml"), std::string::npos);
    EXPECT_NE(refused.error().message.find(place), std::string::npos) << refused.error().message;
  }
  EXPECT_FALSE(load_manifest(write("w.yaml", "a: b"), {}));
}

TEST(EndpointTest, an_address_is_read_as_people_write_it) {
  EXPECT_EQ(show(parse_url("http://host:8000").value()), "http://host:8000/v1");
  EXPECT_EQ(show(parse_url("http://host/api/v1/").value()), "http://host:80/api/v1");
  EXPECT_EQ(show(parse_url("http://[::1]:8000/v1").value()), "http://[::1]:8000/v1");
  EXPECT_EQ(parse_url("http://[::1]:8000").value().host, "::1");
  for (const char* wrong :
       {"", "host:8000", "https://host", "http://", "http://host:0", "http://host:70000",
        "http://host:x", "http://a@b:1", "http://h/v1?x"}) {
    const auto refused = parse_url(wrong);
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message.find("give http://HOST:PORT"), std::string::npos);
  }
}

TEST(UsageTest, a_document_was_cached_if_no_block_but_the_last_was_computed) {
  const auto usage = [](const std::string& text) {
    return parse_usage(R"({"usage": {"prompt_tokens": 100)" + text + "}}");
  };
  const auto cached = [&](const std::string& count) {
    return usage(R"(, "prompt_tokens_details": {"cached_tokens": )" + count + "}").value();
  };
  EXPECT_TRUE(cached("96").was_cached(16));
  EXPECT_TRUE(cached("84").was_cached(16));
  EXPECT_FALSE(cached("83").was_cached(16));
  EXPECT_FALSE(cached("0").was_cached(128)) << "what is shorter than a block is not cached";
  EXPECT_TRUE(cached("0").too_short(128));
  EXPECT_FALSE(cached("0").too_short(100));
  EXPECT_FALSE(usage("").value().was_cached(1000));
  EXPECT_FALSE(usage("").value().cached_tokens);
  EXPECT_FALSE(usage(R"(, "prompt_tokens_details": null)").value().cached_tokens);
  EXPECT_FALSE(usage(R"(, "prompt_tokens_details": {"cached_tokens": 101})"));
  EXPECT_FALSE(usage(R"(, "prompt_tokens_details": {"cached_tokens": "x"})"));
  for (const char* body : {"", "[]", "{}", R"({"usage": 1})", R"({"usage": {}})"}) {
    EXPECT_FALSE(parse_usage(body)) << body;
  }
}

TEST(ProgressTest, the_bar_tells_rate_and_time_left_and_fits_the_terminal) {
  const Progress half{.documents = 8,
                      .documents_done = 2,
                      .bytes = 1000,
                      .bytes_done = 250,
                      .prompt_tokens = 5000,
                      .elapsed = std::chrono::seconds(10)};
  EXPECT_EQ(progress_bar(half, 100),
            "[#####---------------] 25 %  2/8  0.2 docs/s  500.0 tokens/s  00:00:30 left");
  EXPECT_EQ(progress_bar(half, 30).size(), 30U);
  EXPECT_EQ(progress_bar({.documents = 3}, 100), "[####################] 100 %  0/3");
}

}  // namespace
}  // namespace kvtier::warm
