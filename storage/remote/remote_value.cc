#include "storage/remote/remote_value.h"

#include "storage/index/record_checks.h"

namespace kvtier::storage {
namespace {

constexpr std::uint64_t kRemoteEra = 0;  // no store's own: a record's era is that of a disk

}  // namespace

std::string value_name(const Key& key) {
  return std::string(kValuePrefix) + to_hex(key);
}

Result<ValueForm::Value> ValueForm::make(std::span<const std::byte> record,
                                         const BlockIdentity& identity) const {
  auto head = sealed_head(record, identity, kRemoteEra);
  if (!head) return head.error();
  const auto first = head->bytes();
  const auto rest = record.subspan(first.size());
  if (!sealed()) return Value{{first.begin(), first.end()}, rest};
  Value value{std::vector<std::byte>(value_bytes(record.size())), {}};
  if (auto good = cipher_->seal(first, rest, value_name(identity.key), value.first); !good)
    return good.error();
  return value;
}

Result<std::span<const std::byte>> ValueForm::open(std::span<std::byte> value,
                                                   const NamespaceId& ns, const Key& key) const {
  std::span<const std::byte> record = value;
  if (sealed()) {
    const auto opened = cipher_->open(value, value_name(key));
    if (!opened) return opened.error();
    record = *opened;
  }
  if (auto good = verify_record(record, ns, key); !good) return good.error();
  return record;
}

}  // namespace kvtier::storage
