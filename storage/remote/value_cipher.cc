#include "storage/remote/value_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <climits>
#include <fstream>
#include <memory>
#include <string>

#include "core/base/check.h"

namespace kvtier::storage {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const noexcept { ::EVP_CIPHER_CTX_free(context); }
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

const unsigned char* as_uchars(const void* bytes) {
  return static_cast<const unsigned char*>(bytes);
}
unsigned char* as_uchars(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

int as_length(std::size_t bytes) {
  KVTIER_CHECK(bytes <= INT_MAX);
  return static_cast<int>(bytes);
}

Error cipher_failed() {
  return make_error(Errc::io,
                    "AES-256-GCM failed in the system's OpenSSL; look at its "
                    "configuration");
}

}  // namespace

ValueCipher::~ValueCipher() {
  ::OPENSSL_cleanse(key_.data(), key_.size());
}

Result<std::array<unsigned char, ValueCipher::kKeyBytes>> ValueCipher::read_key(
    const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::array<unsigned char, kKeyBytes + 1> bytes{};
  in.read(reinterpret_cast<char*>(bytes.data()), bytes.size());
  std::array<unsigned char, kKeyBytes> key{};
  std::copy_n(bytes.begin(), key.size(), key.begin());
  const bool right = in.gcount() == static_cast<std::streamsize>(kKeyBytes);
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
  if (right) return key;
  return make_error(Errc::invalid, "key_file " + file.string() +
                                       " cannot be read or is not 32 bytes; make one with: head -c "
                                       "32 /dev/urandom > FILE, and give all hosts the same");
}

Result<void> ValueCipher::seal(std::span<const std::byte> head, std::span<const std::byte> body,
                               std::string_view name, std::span<std::byte> out) const {
  KVTIER_CHECK(out.size() == head.size() + body.size() + kMoreBytes);
  unsigned char* const nonce = as_uchars(out.data());
  unsigned char* at = nonce + kNonceBytes;
  int length = 0;
  const CipherContext context(::EVP_CIPHER_CTX_new());
  const bool sealed =
      context && ::RAND_bytes(nonce, kNonceBytes) == 1 &&
      ::EVP_EncryptInit_ex(context.get(), ::EVP_aes_256_gcm(), nullptr, key_.data(), nonce) == 1 &&
      ::EVP_EncryptUpdate(context.get(), nullptr, &length, as_uchars(name.data()),
                          as_length(name.size())) == 1 &&
      ::EVP_EncryptUpdate(context.get(), at, &length, as_uchars(head.data()),
                          as_length(head.size())) == 1 &&
      ::EVP_EncryptUpdate(context.get(), at + head.size(), &length, as_uchars(body.data()),
                          as_length(body.size())) == 1 &&
      ::EVP_EncryptFinal_ex(context.get(), at + head.size() + body.size(), &length) == 1 &&
      ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, kTagBytes,
                            at + head.size() + body.size()) == 1;
  if (!sealed) return cipher_failed();
  return {};
}

Result<std::span<std::byte>> ValueCipher::open(std::span<std::byte> value,
                                               std::string_view name) const {
  if (value.size() < kMoreBytes) return make_error(Errc::corrupt, "value: shorter than its seal");
  const auto record = value.subspan(kNonceBytes, value.size() - kMoreBytes);
  int length = 0;
  const CipherContext context(::EVP_CIPHER_CTX_new());
  const bool ready = context &&
                     ::EVP_DecryptInit_ex(context.get(), ::EVP_aes_256_gcm(), nullptr, key_.data(),
                                          as_uchars(value.data())) == 1 &&
                     ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, kTagBytes,
                                           record.data() + record.size()) == 1 &&
                     ::EVP_DecryptUpdate(context.get(), nullptr, &length, as_uchars(name.data()),
                                         as_length(name.size())) == 1 &&
                     ::EVP_DecryptUpdate(context.get(), as_uchars(record.data()), &length,
                                         as_uchars(record.data()), as_length(record.size())) == 1;
  if (!ready) return cipher_failed();
  if (::EVP_DecryptFinal_ex(context.get(), as_uchars(record.data()) + record.size(), &length) != 1)
    return make_error(Errc::corrupt,
                      "value: it was sealed with another key, or for another block, "
                      "or was changed");
  return record;
}

}  // namespace kvtier::storage
