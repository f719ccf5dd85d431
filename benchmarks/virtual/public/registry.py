"""The model families of the sweep, by the name of their module in transformers.models."""

from __future__ import annotations

from benchmarks.virtual.public.families import (
    AUDIO,
    CLASSES,
    EXPERTS,
    GROUPED,
    IMAGE_SIZE,
    SMALL,
    TOKENS,
    VISION,
    Family,
    audio_classes,
    classified_text,
    decoder,
    encoder,
    images,
    images_in_text,
    masked_images,
    padded_text,
    segmented_images,
    seq2seq,
    series,
    spectrograms,
    speech,
    text_and_images,
    text_without_mask,
    vision,
)

_T5 = {"vocab_size": TOKENS, "d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "pad_token_id": 0,
       "eos_token_id": 1, "decoder_start_token_id": 0}  # fmt: skip
_STATE_SPACE = {"vocab_size": TOKENS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0,
                "eos_token_id": 2}  # fmt: skip
_TEXT_TOWER = {"vocab_size": TOKENS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
               "num_attention_heads": 4, "max_position_embeddings": 64, "eos_token_id": 2, "bos_token_id": 1,
               "pad_token_id": 0}  # fmt: skip
_WHISPER = {"num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 64, "suppress_tokens": None,
            "begin_suppress_tokens": None}  # fmt: skip
_SEGMENTS = {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2],
             "decoder_hidden_size": 16, "num_labels": CLASSES}  # fmt: skip

DECODERS: dict[str, Family] = {
    "gpt2": decoder("GPT2", SMALL, head="LMHeadModel", inputs=padded_text),
    "gpt_bigcode": decoder("GPTBigCode", SMALL),
    "gpt_neo": decoder("GPTNeo", SMALL, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4),
    "gpt_neox": decoder("GPTNeoX", SMALL),
    "gptj": decoder("GPTJ", SMALL, rotary_dim=4),
    "codegen": decoder("CodeGen", SMALL, rotary_dim=4, n_head=4),
    "opt": decoder("OPT", SMALL, ffn_dim=64, word_embed_proj_dim=32),
    "bloom": decoder("Bloom", SMALL, n_head=4, n_layer=2),
    "mpt": decoder("Mpt", SMALL, n_heads=4, n_layers=2, max_seq_len=64),
    "falcon": decoder("Falcon", SMALL),
    "llama": decoder("Llama", inputs=padded_text),
    "mistral": decoder("Mistral", sliding_window=8),
    "mixtral": decoder("Mixtral", EXPERTS, autocast=True),
    "qwen2": decoder("Qwen2"),
    "qwen2_moe": decoder("Qwen2Moe", EXPERTS, shared_expert_intermediate_size=32),
    "qwen3": decoder("Qwen3"),
    "qwen3_moe": decoder("Qwen3Moe", EXPERTS),
    "gemma": decoder("Gemma"),
    "gemma2": decoder("Gemma2", sliding_window=8),
    "gemma3": Family("Gemma3ForCausalLM", "Gemma3TextConfig", text_without_mask, {**GROUPED, "sliding_window": 8},
        generates=True),
    "phi": decoder("Phi"),
    "phi3": decoder("Phi3"),
    "stablelm": decoder("StableLm"),
    "starcoder2": decoder("Starcoder2", autocast=True),
    "olmo2": decoder("Olmo2"),
    "olmoe": decoder("Olmoe", EXPERTS),
    "cohere": decoder("Cohere"),
    "granite": decoder("Granite"),
    "glm": decoder("Glm", partial_rotary_factor=0.5),
    "smollm3": decoder("SmolLM3"),
    "gpt_oss": decoder("GptOss", EXPERTS, sliding_window=8),
    "deepseek_v3": decoder("DeepseekV3", {**EXPERTS, "num_key_value_heads": 4}, n_routed_experts=4, n_group=2,
        topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=1, n_shared_experts=1),
    "mamba": decoder("Mamba", _STATE_SPACE),
    "mamba2": decoder("Mamba2", _STATE_SPACE, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
    "recurrent_gemma": decoder("RecurrentGemma", num_hidden_layers=3, attention_window_size=8, lru_width=32),
    "xglm": decoder("XGLM", SMALL, attention_heads=4, ffn_dim=64, num_layers=2, d_model=32),
    "biogpt": decoder("BioGpt", SMALL),
}  # fmt: skip

SEQ2SEQS: dict[str, Family] = {
    "t5": seq2seq("T5", **_T5),
    "bart": seq2seq("Bart"),
    "mbart": seq2seq("MBart"),
    "pegasus": seq2seq("Pegasus"),
    "m2m_100": seq2seq("M2M100"),
    "blenderbot": seq2seq("Blenderbot"),
    "whisper": Family("WhisperForConditionalGeneration", "WhisperConfig", spectrograms,
        {**seq2seq("Whisper").sizes, **_WHISPER}, generates=True),
}  # fmt: skip

ENCODERS: dict[str, Family] = {
    "bert": encoder("Bert", inputs=padded_text),
    "roberta": encoder("Roberta", max_position_embeddings=80),
    "distilbert": encoder("DistilBert", "ForSequenceClassification", classified_text, dim=32, n_heads=4, n_layers=2,
        hidden_dim=64, num_labels=CLASSES),
    "albert": encoder("Albert", embedding_size=16),
    "electra": encoder("Electra", embedding_size=16),
    "deberta_v2": encoder("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "mpnet": encoder("MPNet", max_position_embeddings=80),
    "xlnet": Family("XLNetForSequenceClassification", "XLNetConfig", classified_text,
        {"vocab_size": TOKENS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64, "num_labels": CLASSES}),
    "longformer": encoder("Longformer", attention_window=[8, 8], max_position_embeddings=80),
    "big_bird": encoder("BigBird", attention_type="original_full"),
    "modernbert": encoder("ModernBert", cls_token_id=1, sep_token_id=2),
    "convbert": encoder("ConvBert", embedding_size=32),
    "fnet": encoder("FNet", inputs=text_without_mask),
}  # fmt: skip

VISIONS: dict[str, Family] = {
    "vit": vision("ViT"),
    "deit": vision("DeiT"),
    "beit": vision("Beit"),
    "dinov2": vision("Dinov2"),
    "swin": Family("SwinForImageClassification", "SwinConfig", images, {"image_size": IMAGE_SIZE, "patch_size": 4,
        "window_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "num_labels": CLASSES}),
    "convnext": vision("ConvNext", hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], patch_size=4),
    "resnet": vision("ResNet", embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1]),
    "segformer": Family("SegformerForSemanticSegmentation", "SegformerConfig", segmented_images, _SEGMENTS),
    "vit_mae": vision("ViTMAE", "ForPreTraining", masked_images, decoder_hidden_size=32, decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4, decoder_intermediate_size=64),
}  # fmt: skip

OTHERS: dict[str, Family] = {
    "wav2vec2": Family("Wav2Vec2ForCTC", "Wav2Vec2Config", speech, AUDIO),
    "hubert": Family("HubertForCTC", "HubertConfig", speech, AUDIO),
    "audio_spectrogram_transformer": Family("ASTForAudioClassification", "ASTConfig", audio_classes,
        {**VISION, "max_length": 64, "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8}),
    "clip": Family("CLIPModel", "CLIPConfig", text_and_images,
        {"text_config": _TEXT_TOWER, "vision_config": VISION, "projection_dim": 16}),
    "siglip": Family("SiglipModel", "SiglipConfig", text_and_images,
        {"text_config": _TEXT_TOWER, "vision_config": VISION}),
    "llava": Family("LlavaForConditionalGeneration", "LlavaConfig", images_in_text,
        {"text_config": {**GROUPED, "model_type": "llama"}, "image_token_index": TOKENS - 1,
         "image_token_id": TOKENS - 1, "vision_config": {**VISION, "model_type": "clip_vision_model"}},
        generates=True),
    "patchtst": Family("PatchTSTForPrediction", "PatchTSTConfig", series,
        {"num_input_channels": 2, "context_length": 32, "patch_length": 4, "patch_stride": 4, "d_model": 16,
         "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 32, "prediction_length": 8}),
}  # fmt: skip

FAMILIES: dict[str, Family] = {**DECODERS, **SEQ2SEQS, **ENCODERS, **VISIONS, **OTHERS}
