// Who goes for whom, where a server has no place left.
#include "core/base/connection_places.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvtier {
namespace {

using Id = ConnectionPlaces::Id;

class ConnectionPlacesTest : public ::testing::Test {
 protected:
  Id enter(const std::string& peer) {
    const int number = ++entered;
    return places.enter(peer, [this, number] { closed.push_back(number); });
  }
  ConnectionPlaces places{3};
  int entered = 0;
  std::vector<int> closed;  // by the order in which they came
};

TEST_F(ConnectionPlacesTest, who_has_waited_longest_for_its_request_goes_for_one_that_comes) {
  const Id first = enter("a");
  enter("a"), enter("a");
  EXPECT_TRUE(closed.empty());
  places.answering(first);
  places.waits(first);  // anew
  enter("a");
  EXPECT_EQ(closed, std::vector<int>{2});
  enter("a");
  EXPECT_EQ(closed, (std::vector<int>{2, 3}));
  enter("a");
  EXPECT_EQ(closed, (std::vector<int>{2, 3, 1}));
  EXPECT_EQ(places.open(), 3U);
  EXPECT_EQ(places.closed(), 3U);
}

TEST_F(ConnectionPlacesTest, one_whose_request_is_answered_stays_and_where_all_are_none_comes_in) {
  const Id ids[] = {enter("a"), enter("a"), enter("a")};
  for (const Id id : ids) places.answering(id);
  EXPECT_EQ(enter("a"), 0U);
  EXPECT_TRUE(closed.empty());
  places.leave(ids[1]);
  EXPECT_NE(enter("a"), 0U);
  EXPECT_TRUE(closed.empty());
}

TEST_F(ConnectionPlacesTest, a_peer_with_many_connections_makes_room_for_a_peer_with_few) {
  enter("few");
  enter("many"), enter("many");
  enter("many");
  EXPECT_EQ(closed, std::vector<int>{2});
  enter("other");
  EXPECT_EQ(closed, (std::vector<int>{2, 3}));
}

TEST_F(ConnectionPlacesTest, one_that_has_left_is_closed_for_nobody) {
  const Id first = enter("a");
  places.leave(first);
  places.leave(first);
  places.waits(first);
  enter("a"), enter("a"), enter("a");
  EXPECT_TRUE(closed.empty());
  EXPECT_EQ(places.open(), 3U);
}

}  // namespace
}  // namespace kvtier
