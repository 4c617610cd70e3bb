// Namespaces and their handles.
#include "client/session/thread/namespaces.h"

#include "tests/client/thread/parts.h"

namespace kvtier::session {
namespace {

class NamespacesTest : public SessionParts {
 protected:
  Namespaces::Use note(std::vector<Result<std::uint32_t>>& into) {
    return [&into](Result<std::uint32_t> handle) { into.push_back(std::move(handle)); };
  }
  std::vector<Result<std::uint32_t>> handles;
};

TEST_F(NamespacesTest, ThereIsOneEntryForANamespace) {
  const auto [first, is_new] = namespaces.find_or_add(test::small_namespace(), 8);
  EXPECT_TRUE(is_new);
  EXPECT_EQ(namespaces.find_or_add(test::small_namespace(), 8), (std::pair{first, false}));
  EXPECT_TRUE(namespaces.find_or_add(test::small_namespace(StorageFormat::bf16), 8).second);
  EXPECT_EQ(namespaces.all().size(), 2U);
}

// Said later, it came after the answer now and then, and no slots were ever asked for.
TEST_F(NamespacesTest, SlotsAreExpectedFromTheFirstUntilTheAnswer) {
  const auto ns = namespaces.find_or_add(test::small_namespace(), 8).first;
  EXPECT_TRUE(ns->pool(Tier::host).expected());
  namespaces.open(ns);
  EXPECT_TRUE(ns->pool(Tier::host).expected());
  said();
  ASSERT_TRUE(answer([](wire::Message::Builder m) { m.setOpened(kHandle); }));
  EXPECT_FALSE(ns->pool(Tier::host).expected());
  EXPECT_EQ(ns->pool(Tier::host).claim(Clock::now()), 8U);
}

TEST_F(NamespacesTest, WhoWantsAHandleWaitsForTheOpening) {
  const auto ns = namespaces.find_or_add(test::small_namespace(), 8).first;
  namespaces.open(ns);
  namespaces.with_handle(*ns, note(handles));
  EXPECT_TRUE(handles.empty());
  said();
  ASSERT_TRUE(answer([](wire::Message::Builder m) { m.setOpened(kHandle); }));
  ASSERT_EQ(handles.size(), 1U);
  EXPECT_EQ(handles[0].value(), kHandle);
  EXPECT_EQ(namespaces_opened, 1);
  namespaces.with_handle(*ns, note(handles));
  EXPECT_EQ(handles.size(), 2U) << "it is at hand";
}

TEST_F(NamespacesTest, ARefusalIsWhatEverybodyHears) {
  const auto ns = namespaces.find_or_add(test::small_namespace(), 8).first;
  namespaces.open(ns);
  namespaces.with_handle(*ns, note(handles));
  said();
  ASSERT_TRUE(answer([](wire::Message::Builder m) {
    auto error = m.initError();
    error.setCode(static_cast<std::uint16_t>(Errc::refused));
    error.setMessage("not for you");
  }));
  namespaces.with_handle(*ns, note(handles));
  ASSERT_EQ(handles.size(), 2U);
  for (const auto& heard_of : handles) EXPECT_EQ(heard_of.error().message, "not for you");
  EXPECT_EQ(slots_changed, 1) << "no slots will come";
}

TEST_F(NamespacesTest, WhenTheConnectionEndsWhoWaitsIsToldAndTheNextOneOpensThemAgain) {
  const auto ns = namespaces.find_or_add(test::small_namespace(), 8).first;
  namespaces.open(ns);
  namespaces.with_handle(*ns, note(handles));
  end();
  ASSERT_EQ(handles.size(), 1U);
  EXPECT_EQ(handles[0].error().code, Errc::unavailable);
  namespaces.with_handle(*ns, note(handles));
  EXPECT_EQ(handles[1].error().code, Errc::unavailable);
  begin();
  namespaces.open_all();
  EXPECT_EQ(said(), std::vector{Which::OPEN_NAMESPACE});
}

TEST_F(NamespacesTest, OneThatTheDaemonClosedStaysClosedAndIsOpenedAnewAsAnother) {
  const auto ns = opened();
  EXPECT_EQ(namespaces.close(kHandle + 1), nullptr);
  EXPECT_EQ(namespaces.close(kHandle), ns);
  EXPECT_TRUE(ns->invalidated);
  namespaces.with_handle(*ns, note(handles));
  EXPECT_EQ(handles.at(0).error().code, Errc::refused);
  EXPECT_NE(namespaces.find_or_add(test::small_namespace(), 8).first, ns);
}

}  // namespace
}  // namespace kvtier::session
