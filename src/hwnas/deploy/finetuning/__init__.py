"""Fine-tuning in little memory: update schemes, their backward graph compiled ahead, their memory.

After "PockEngine: Sparse and Efficient Fine-tuning in a Pocket" (Zhu et al., MICRO 2023) and
"On-Device Training Under 256KB Memory" (Lin et al., NeurIPS 2022).
"""

__all__: list[str] = []
