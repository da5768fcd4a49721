#include "core/checkpoint/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"
#include "core/base/status.h"

namespace psd::checkpoint {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  PSD_CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr),
            "libcrypto has SHA-256");
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;

void Sha256::Add(absl::string_view bytes) {
  PSD_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()), "SHA-256");
}

std::string Sha256::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  PSD_CHECK(EVP_DigestFinal_ex(state_->context, digest, &size), "SHA-256");
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace psd::checkpoint
