#include "tests/fuzz/targets.h"

namespace kvtier::fuzz {

std::vector<Target> all_targets() {
  return {frames(), config(), slot_table(), segment(), safetensors(), tokenizer(), chat_template()};
}

}  // namespace kvtier::fuzz
