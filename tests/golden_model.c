#include "tests/golden_common.h"
void gold_models(struct gold_case *c) { (void)c; }
