// What a template's rendering is made of: scopes, output, functions, expressions, each by itself.
#include <gtest/gtest.h>

#include <string>

#include "engine_adapter/reference/template/interpreter.h"
#include "engine_adapter/reference/template/macro_arguments.h"

namespace kvtier::jinja {
namespace {

class TemplateParts : public testing::Test {
 protected:
  // Calls nothing: what it was to call is told.
  struct NoCalls final : Calls {
    Value call(const Value& callee, const Arguments& arguments) override {
      called = callee.shared<const Callable>()->name;
      given = arguments.plain.size();
      return Value::of(std::int64_t{1});
    }
    std::string called;
    std::size_t given = 0;
  };

  TemplateParts() { variables_.set("given", Value::of(std::int64_t{7})); }

  // The value of what `{{ }}` holds.
  Value value_of(const std::string& expression) {
    block_ = parse("{{ " + expression + " }}");
    return evaluator_.evaluate(*block_.at(0).value);
  }

  Map variables_;
  Meter meter_{RenderLimits{}};
  Nesting nesting_{meter_};
  Scopes scopes_{variables_};
  Functions functions_{meter_, 0};
  NoCalls calls_;
  Evaluator evaluator_{meter_, nesting_, scopes_, functions_, calls_};
  Block block_;
};

TEST_F(TemplateParts, TheInnermostScopeIsSeenFirstAndWhatWasGivenLast) {
  EXPECT_EQ(scopes_.find("given")->whole(), 7);
  scopes_.innermost().set("given", Value::of(std::int64_t{8}));
  scopes_.push();
  scopes_.innermost().set("x", Value::of(std::int64_t{1}));
  EXPECT_EQ(scopes_.find("given")->whole(), 8);
  EXPECT_NE(scopes_.find("x"), nullptr);
  scopes_.pop();
  EXPECT_EQ(scopes_.find("x"), nullptr);
}

TEST_F(TemplateParts, AScopeThatAClosureSeesIsNotClearedByTheNextRound) {
  scopes_.push();
  scopes_.innermost().set("x", Value::of(std::int64_t{1}));
  const Scopes::Stack closure = scopes_.stack();
  scopes_.renew();
  EXPECT_EQ(scopes_.find("x"), nullptr);
  const Scopes::Stack outside = scopes_.exchange(closure);
  EXPECT_EQ(scopes_.find("x")->whole(), 1);
  scopes_.exchange(outside);
  EXPECT_EQ(scopes_.find("x"), nullptr);
}

TEST_F(TemplateParts, WhatIsCaughtDoesNotComeOut) {
  Output output(meter_);
  output.put("a");
  const std::string caught = output.caught([&] {
    output.put("b");
    output.put(Value::of(std::int64_t{3}));
  });
  output.put("c");
  EXPECT_EQ(caught, "b3");
  EXPECT_EQ(output.take(), "ac");
  EXPECT_EQ(output.take(), "");
}

TEST_F(TemplateParts, ExpressionsSeeScopesAndFunctionsAndCallThroughWhoCalls) {
  EXPECT_EQ(value_of("given + 1").whole(), 8);
  EXPECT_TRUE(value_of("nothing").is_undefined());
  EXPECT_EQ(value_of("range(3, given)").whole(), 1);
  EXPECT_EQ(calls_.called, "range");
  EXPECT_EQ(calls_.given, 2U);
  EXPECT_THROW(value_of("lipsum()"), Fault);
}

TEST_F(TemplateParts, NamespacesThatHoldEachOtherGoWithTheFunctions) {
  std::weak_ptr<const Sequence> held;
  {
    Functions functions(meter_, 0);
    const Value one = functions.call("namespace", {}), other = functions.call("namespace", {});
    const Value list = make_sequence(meter_, {one, other});
    one.shared<Namespace>()->attributes.set("other", other);
    other.shared<Namespace>()->attributes.set("list", list);
    held = *list.get_if<std::shared_ptr<const Sequence>>();
  }
  EXPECT_TRUE(held.expired());
}

TEST_F(TemplateParts, AMacrosArgumentsAreBoundInTheirOrderAndDefaultsSeeThoseBefore) {
  block_ = parse("{% macro m(a, b=a + 1, c=b + 1) %}{% endmacro %}");
  scopes_.push();
  Arguments arguments;
  arguments.plain.push_back(Value::of(std::int64_t{5}));
  arguments.named.emplace_back("c", Value::of(std::int64_t{0}));
  bind_arguments(meter_, evaluator_, block_.at(0), arguments, scopes_.innermost());
  EXPECT_EQ(scopes_.find("a")->whole(), 5);
  EXPECT_EQ(scopes_.find("b")->whole(), 6);
  EXPECT_EQ(scopes_.find("c")->whole(), 0);
  EXPECT_TRUE(scopes_.find("caller")->is_undefined());
  arguments.named.emplace_back("d", Value::of(std::int64_t{0}));
  EXPECT_THROW(bind_arguments(meter_, evaluator_, block_.at(0), arguments, scopes_.innermost()),
               Fault);
}

TEST_F(TemplateParts, NestingHasABoundAndComesBack) {
  const auto nest = [&](const auto& self, int levels) -> void {
    const Nesting::Deeper deeper(nesting_);
    if (levels > 1) self(self, levels - 1);
  };
  nest(nest, kEvaluationDepthMax);
  EXPECT_NO_THROW(nest(nest, kEvaluationDepthMax)) << "the first has ended";
  EXPECT_THROW(nest(nest, kEvaluationDepthMax + 1), Fault);
}

}  // namespace
}  // namespace kvtier::jinja
