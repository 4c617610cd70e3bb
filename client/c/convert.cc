#include "client/c/convert.h"

#include <utility>

namespace kvtier::c {
namespace {

std::string& last_error() noexcept {
  thread_local std::string text;
  return text;
}

std::string text_of(const char* text) {
  return text == nullptr ? std::string() : std::string(text);
}

static_assert(static_cast<int>(Errc::stale) == KVT_STALE, "codes are those of Errc");
static_assert(static_cast<int>(StorageFormat::int4) == KVT_FORMAT_INT4);
static_assert(kTiers == KVT_TIERS && kDropReasons == KVT_DROP_REASONS);
static_assert(static_cast<int>(DropReason::failed) == KVT_DROP_FAILED);
static_assert(static_cast<int>(LeaseState::lost) == KVT_LEASE_LOST);
static_assert(static_cast<int>(DType::bf16) == KVT_DTYPE_BF16);
static_assert(static_cast<int>(HintKind::ended) == KVT_HINT_ENDED);
static_assert(static_cast<int>(LogLevel::debug) == KVT_LOG_DEBUG);

}  // namespace

kvt_code failed(const Error& error) noexcept {
  last_error() = error.message;
  return static_cast<kvt_code>(error.code);
}

kvt_code failed(Errc code, std::string what) noexcept {
  last_error() = std::move(what);
  return static_cast<kvt_code>(code);
}

kvt_code null_argument(const char* what) noexcept {
  return failed(Errc::invalid, std::string(what) + " is NULL");
}

Result<DType> dtype_of(kvt_dtype type) {
  const int number = static_cast<int>(type);
  if (number < KVT_DTYPE_F32 || number > KVT_DTYPE_BF16)
    return make_error(Errc::invalid,
                      "kvt_dtype " + std::to_string(number) + " is none of f32, f16 and bf16");
  return static_cast<DType>(number);
}

Result<Namespace> namespace_of(const kvt_namespace* from) {
  const auto c = taken(from, kvt_namespace KVT_NAMESPACE_INIT, "kvt_namespace");
  if (!c) return c.error();
  const auto shapes = taken(c->layer_shapes, c->layer_shapes_count,
                            kvt_layer_shape KVT_LAYER_SHAPE_INIT, "kvt_layer_shape");
  if (!shapes) return shapes.error();
  Namespace ns;
  ns.model = text_of(c->model);
  ns.adapter = text_of(c->adapter);
  ns.tenant = text_of(c->tenant);
  ns.positions = text_of(c->positions);
  ns.page_layout = text_of(c->page_layout);
  ns.layers = c->layers;
  ns.kv_heads = c->kv_heads;
  ns.head_dim_k = c->head_dim_k;
  ns.head_dim_v = c->head_dim_v;
  ns.block_tokens = c->block_tokens;
  ns.format = static_cast<StorageFormat>(c->format);
  ns.rank = c->rank;
  ns.ranks = c->ranks;
  ns.raw_bytes = c->raw_bytes;
  ns.extra_bytes_max = c->extra_bytes_max;
  ns.digest_bytes = c->digest_bytes;
  for (const kvt_layer_shape& shape : *shapes) {
    ns.layer_shapes.push_back({shape.kv_heads, shape.head_dim_k, shape.head_dim_v,
                               static_cast<StorageFormat>(shape.format), shape.raw_bytes});
  }
  if (auto good = ns.validate(); !good) return good.error();
  return ns;
}

Result<Pages> pages_of(const kvt_pages* from) {
  const auto c = taken(from, kvt_pages KVT_PAGES_INIT, "kvt_pages");
  if (!c) return c.error();
  const auto type = dtype_of(c->type);
  if (!type) return type.error();
  if ((c->records == nullptr && c->records_count > 0) ||
      (c->numbers == nullptr && c->numbers_count > 0) ||
      (c->k_pages == nullptr && c->k_pages_count > 0) ||
      (c->v_pages == nullptr && c->v_pages_count > 0))
    return make_error(Errc::invalid, "kvt_pages has a count without its array");
  Pages pages;
  // An array of void* is one of std::byte* to every compiler that this builds with.
  pages.records = {reinterpret_cast<std::byte* const*>(c->records), c->records_count};
  pages.in_place = c->in_place;
  if (c->pool != nullptr) pages.pool = &c->pool->pool;
  pages.numbers = {c->numbers, c->numbers_count};
  pages.k_pages = {c->k_pages, c->k_pages_count};
  pages.v_pages = {c->v_pages, c->v_pages_count};
  pages.type = *type;
  return pages;
}

}  // namespace kvtier::c

const char* kvt_error(void) {
  return kvtier::c::last_error().c_str();
}

const char* kvt_code_name(kvt_code code) {
  if (code == KVT_OK) return "ok";
  if (code < KVT_OK || code > KVT_STALE) return "unknown";
  return kvtier::name(static_cast<kvtier::Errc>(code));
}

int64_t kvt_after(int64_t ns) {
  const std::int64_t now = kvtier::Clock::now().time_since_epoch().count();
  return ns > KVT_NEVER - now ? KVT_NEVER : now + ns;
}
